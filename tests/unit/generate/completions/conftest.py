"""What the tests of completions share: a frame of prompts, a store, a tiny random policy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.store import Store


@pytest.fixture
def store(migrated: Path, tmp_path: Path) -> Iterator[Store]:
    shutil.copy(migrated, tmp_path / "store.db")
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def prompts() -> pd.DataFrame:
    texts = [
        "Why is the sky blue?",
        "Name three rivers.",
        "Write a line about rain.",
        "What is 2 + 2?",
        "Sort 3, 1, 2.",
    ]
    return check_frame(
        pd.DataFrame(
            {
                "day": "2026-01-01",
                "prompt_id": [f"p{i}" for i in range(len(texts))],
                "text": texts,
                "category": "factual",
                "difficulty": "easy",
                "source": "templates",
                "template_id": None,
                "variables": "{}",
                "reference": None,
                "seed": 1,
            }
        ),
        PROMPTS,
    )


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights, two layers wide enough for a byte-level vocabulary, and a chat
    template.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-policy")
    symbols = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = (
        "{% for m in messages %}Q: {{ m['content'] }}\n{% endfor %}{% if "
        "add_generation_prompt %}A: {% endif %}"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(symbols),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
