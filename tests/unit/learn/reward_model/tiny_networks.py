"""Backbones of a few thousand weights, made from configuration, and pairs that a word decides. For
tests of transformers.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame

WORDS = [
    "kind",
    "curt",
    "sourced",
    "vague",
    "right",
    "wrong",
    "long",
    "short",
    "warm",
    "cold",
    "ask",
    "reply",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_tiny_bert(
    folder: Path, *, seed: int = 0, positions: int = 32, distilled: bool = False
) -> Path:
    """An encoder of two layers and 16 dimensions over whole words; texts of up to `positions`
    tokens. `distilled`: a DistilBERT.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertModel,
        DistilBertConfig,
        DistilBertModel,
        PreTrainedTokenizerFast,
    )

    vocabulary = {
        word: i for i, word in enumerate([*SPECIAL, *WORDS, *(str(n) for n in range(60))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(seed)
    if distilled:
        shape = {
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 32,
            "max_position_embeddings": positions,
        }
        DistilBertModel(DistilBertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(
            folder
        )
        return folder
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def save_tiny_llama(folder: Path, *, seed: int = 0) -> Path:
    """A causal language model of one layer and 16 dimensions over the same words; its texts end in
    [SEP].
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {
        word: i for i, word in enumerate([*SPECIAL, *WORDS, *(str(n) for n in range(60))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def word_pairs(
    n_prompts: int = 12,
    n_completions: int = 5,
    *,
    seed: int = 0,
    liked: str = "kind",
    first_seq: int = 0,
) -> pd.DataFrame:
    """Every two completions of each prompt compared by five people, who like one word by three
    logits.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for prompt in range(n_prompts):
        texts = [" ".join(rng.choice(WORDS[1:10], 4, replace=False)) for _ in range(n_completions)]
        texts = [f"{liked} {text}" if i % 2 else text for i, text in enumerate(texts)]
        for i in range(n_completions):
            for j in range(i):
                utility = 3.0 * ((liked in texts[i]) - (liked in texts[j]))
                n_i = int(rng.binomial(5, 1 / (1 + np.exp(-utility))))
                chosen, rejected = (texts[i], texts[j]) if n_i > 2 else (texts[j], texts[i])
                rows.append(
                    {
                        "day": "2026-01-01",
                        "comparison_id": f"c{seed}-{len(rows):04d}",
                        "prompt_id": f"p{seed}-{prompt}",
                        "prompt": f"ask {prompt}",
                        "chosen": chosen,
                        "rejected": rejected,
                        "margin": 0.5,
                        "agreement": max(n_i, 5 - n_i) / 5,
                        "n_votes": 5,
                        "chosen_side": "a" if n_i > 2 else "b",
                        "annotator_kind": "human",
                        "category": "factual",
                        "split": "train",
                        "max_seq": first_seq + len(rows) + 1,
                    }
                )
    return check_frame(pd.DataFrame(rows), PREFERENCE_PAIRS)
