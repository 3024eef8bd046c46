"""Trains the embedded policy's byte-level BPE tokenizer, and defines its chat template."""

from collections.abc import Iterable
from typing import Any

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

# One format for sampling, scoring and training: it is stored with the tokenizer, and all code reads
# it from there.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    f"{{{{ '{ASSISTANT}' + message['content'] + '{END}' }}}}"
    f"{{%- else -%}}{{{{ '{USER}' + message['content'] }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{ASSISTANT}' }}}}{{%- endif -%}}"
)


def train_tokenizer(texts: Iterable[str], n_vocabulary: int, context_length: int) -> Any:
    """Train a transformers tokenizer on `texts`: deterministic, and byte-level, so no text is out
    of vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocabulary,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
