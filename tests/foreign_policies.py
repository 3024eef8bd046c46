"""Tiny causal LMs with the tokenizers and chat templates that people bring."""

from pathlib import Path
from typing import Any

TEXTS = [
    "Name a river in Portugal. The Douro – 897 km, from Spain to Porto.",
    "system user assistant model You are terse. Hi Hello.",
] * 40
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "<|assistant|>{{ m.content.split('</think>')[-1] }}</s>{% else %}"
    "<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% if loop.last %}"
    "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% else %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = ["<|im_start|>", "<|im_end|>"]
# name -> special tokens (the first begins texts or, without `begins`, ends them), chat template,
# whether the tokenizer begins every text, whether it names an end token, where sampling also stops
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {"specials": ["</s>"], "template": None},
    "chatml": {"specials": ["<|im_end|>", "<|im_start|>"], "template": CHATML},
    "chatml_other_end": {"specials": ["<|endoftext|>", *TURNS], "template": CHATML},
    "chatml_two_stops": {
        "specials": ["<|endoftext|>", *TURNS],
        "template": CHATML,
        "stops": ["<|im_end|>", "<|endoftext|>"],
    },
    "gemma": {
        "specials": ["<eos>", "<bos>", "<turn>", "</turn>"],
        "template": GEMMA,
        "begin": "<bos>",
        "stops": ["<eos>", "</turn>"],
    },
    "no_begin": {
        "specials": ["<|im_end|>", "<s>", "<|im_start|>"],
        "template": CHATML,
        "begin": "<s>",
    },
    "two_begins": {
        "specials": ["</turn>", "<bos>", "<turn>"],
        "template": "{{ bos_token }}" + GEMMA,
        "begin": "<bos>",
    },
    "r1": {
        "specials": ["</s>", "<s>", "<think>", "</think>", "<|user|>", "<|assistant|>"],
        "template": R1,
        "begin": "<s>",
    },
    "qwen": {"specials": ["<|im_end|>", "<|im_start|>", "<think>", "</think>"], "template": QWEN},
    "silent": {"specials": ["</s>"], "template": "{% for m in messages %}{{ m.role }}{% endfor %}"},
    "refuses": {"specials": ["</s>"], "template": "{{ raise_exception('no chat') }}"},
}


def build_foreign_policy(name: str, folder: Path) -> Path:
    """The folder of the policy `name` of POLICIES."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    kind = POLICIES[name]
    [end, *_] = kind["specials"]
    begin = kind.get("begin")
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=kind["specials"], initial_alphabet=alphabet
    )
    tokens.train_from_iterator(TEXTS, trainer)
    if begin:
        tokens.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokens.token_to_id(begin))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token=begin, eos_token=end)
    tokenizer.chat_template = kind["template"]
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **heads, **ends))
    if "stops" in kind:
        model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(kind["stops"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
