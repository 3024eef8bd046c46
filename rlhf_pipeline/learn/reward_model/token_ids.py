"""Encodes prompt and completion as a network's token ids, and truncates them to its window."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_pipeline.core.errors import ModelError

logger = logging.getLogger(__name__)

SEPARATOR = " [SEP] "
# Share of the window reserved for the end of a prompt if the completion alone would fill it.
PROMPT_SHARE = 0.25


@dataclass(frozen=True)
class TokenReader:
    """Encodes the end of the prompt, ` [SEP] ` and the completion as at most `max_tokens` token
    ids, including special ones.

    Longer texts are truncated by one rule: first the beginning of the prompt is dropped until it
    has PROMPT_SHARE of the window, then the end of the completion.
    """

    tokenizer: Any
    max_tokens: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int

    @classmethod
    def from_folder(cls, folder: Path, max_tokens: int, *, is_causal: bool) -> "TokenReader":
        """Load the tokenizer in `folder`. Raises ModelError if there is none, or if it has neither
        a padding nor an end token.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise ModelError(
                f"No tokenizer can be read from {folder} ({cause}). Save one beside the backbone."
            ) from cause
        prefix, suffix = _special_ids(tokenizer)
        end = tokenizer.eos_token_id
        if is_causal and not suffix and end is not None:
            suffix = (end,)  # the scored token, the same for every text
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
        if pad_id is None:
            raise ModelError(
                f"The tokenizer in {folder} has neither a padding nor an end token. Give it a "
                "pad_token and save it."
            )
        return cls(
            tokenizer, min(max_tokens, tokenizer.model_max_length), prefix, suffix, int(pad_id)
        )

    def encode(self, prompts: Sequence[str], completions: Sequence[str]) -> list[list[int]]:
        """The ids of each text. It logs how many were truncated."""
        fronts = self._encode_distinct(prompts)
        backs = self._encode_distinct([f"{SEPARATOR}{completion}" for completion in completions])
        room = self.max_tokens - len(self.prefix) - len(self.suffix)
        n_cut = 0
        token_ids = []
        for front, back in zip(fronts, backs, strict=True):
            if len(front) + len(back) > room:
                n_cut += 1
                n_front = min(len(front), max(room - len(back), int(room * PROMPT_SHARE)))
                token_ids.append(
                    [
                        *self.prefix,
                        *front[len(front) - n_front :],
                        *back[: room - n_front],
                        *self.suffix,
                    ]
                )
            else:
                token_ids.append([*self.prefix, *front, *back, *self.suffix])
        if n_cut:
            logger.warning(
                "%d of %d texts have more than %d tokens and are cut.", n_cut, len(token_ids), room
            )
        return token_ids

    def _encode_distinct(self, texts: Sequence[str]) -> list[list[int]]:
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return []
        token_ids = self.tokenizer(
            distinct, add_special_tokens=False, truncation=False, verbose=False
        )["input_ids"]
        ids_by_text = dict(zip(distinct, token_ids, strict=True))
        return [ids_by_text[text] for text in texts]


def _special_ids(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the tokenizer adds before and after a text."""
    bare, whole = (
        tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True)
    )
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    return (), ()
