"""Rules that every prompt of a run must keep: length, terms, topic.

A broken rule gives its reason and the parameter to change. The topic is the cosine
of two embeddings by the encoder that the caller passes.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rlhf_pipeline.core.errors import PromptError

Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]

MAX_PROMPT_BYTES = 100_000
# Thai to Khmer, kana, ideographs and Hangul: written without spaces, or with endings, so that a
# term occurs within other characters.
UNSPACED = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    r"\U00020000-\U0003ffff]"
)


class RuleViolation(NamedTuple):
    """A broken rule, and the reason as a sentence."""

    rule: str
    reason: str


class ConstraintParams(BaseModel):
    """Rules for every prompt; by default all pass."""

    model_config = ConfigDict(allow_inf_nan=False)

    min_chars: int = Field(
        1, description="Minimum length of a prompt in characters", ge=1, le=MAX_PROMPT_BYTES
    )
    max_chars: int = Field(
        MAX_PROMPT_BYTES,
        description="Maximum length of a prompt in characters",
        ge=1,
        le=MAX_PROMPT_BYTES,
    )
    must: list[str] = Field(
        [],
        description="Terms that every prompt must contain, as whole words in any case and "
        "Unicode form",
    )
    must_not: list[str] = Field(
        [],
        description="Terms that no prompt may contain, as whole words in any case and Unicode form",
    )
    topic: str = Field("", description="Topic of every prompt, in a few words; empty = any")
    min_topic_similarity: float = Field(
        0.3,
        description="Minimum cosine similarity of the embeddings of prompt and topic",
        ge=-1,
        le=1,
    )

    @field_validator("must", "must_not")
    @classmethod
    def _check_terms(cls, terms: list[str]) -> list[str]:
        if any(not term.strip() for term in terms):
            raise ValueError("a term is empty; leave it out")
        return terms

    @model_validator(mode="after")
    def _check_consistency(self) -> Any:
        if self.min_chars > self.max_chars:
            raise ValueError(f"min_chars {self.min_chars} is above max_chars {self.max_chars}")
        both = sorted({_fold(t) for t in self.must} & {_fold(t) for t in self.must_not})
        if both:
            raise ValueError(f"{both} is listed in both must and must_not")
        return self


class Constraints:
    """Checks texts against the rules of `params`. Raises PromptError for a topic without an
    encoder.
    """

    def __init__(self, params: ConstraintParams, embed: Embed | None = None) -> None:
        if params.topic and embed is None:
            raise PromptError(
                f"The topic {params.topic!r} needs a sentence encoder. Pass one as `embed`."
            )
        self._params = params
        self._must = {term: _compile_term(term) for term in params.must}
        self._must_not = {term: _compile_term(term) for term in params.must_not}
        self._embed = embed if params.topic else None
        self._topic = embed([params.topic])[0] if params.topic and embed is not None else None

    def find_violation(self, text: str) -> RuleViolation | None:
        """The first rule that `text` breaks, cheap rules first; None if it keeps all."""
        return (
            find_unusable(text)
            or self._check_length(text)
            or self._check_terms(text)
            or self._check_topic(text)
        )

    def _check_length(self, text: str) -> RuleViolation | None:
        if len(text) < self._params.min_chars:
            return RuleViolation(
                "length",
                f"{len(text):,} characters, at least {self._params.min_chars:,} are required "
                f"(min_chars)",
            )
        if len(text) > self._params.max_chars:
            return RuleViolation(
                "length",
                f"{len(text):,} characters, at most {self._params.max_chars:,} are allowed "
                f"(max_chars)",
            )
        return None

    def _check_terms(self, text: str) -> RuleViolation | None:
        if not (self._must or self._must_not):
            return None
        text = _fold(text)
        for term, pattern in self._must.items():
            if not pattern.search(text):
                return RuleViolation("must", f"{term!r} is missing, but required (must)")
        for term, pattern in self._must_not.items():
            if pattern.search(text):
                return RuleViolation("must_not", f"{term!r} occurs, but is forbidden (must_not)")
        return None

    def _check_topic(self, text: str) -> RuleViolation | None:
        if self._embed is None:
            return None
        cosine = round(float(self._embed([text])[0] @ self._topic), 4)
        least = self._params.min_topic_similarity
        if cosine >= least:
            return None
        return RuleViolation(
            "topic",
            f"similarity {cosine:.2f} to {self._params.topic!r}, at least {least:.2f} is required "
            f"(topic, min_topic_similarity)",
        )


def find_unusable(text: str) -> RuleViolation | None:
    """Why this text can never be a prompt: empty, too long, or refused by databases."""
    if not text.strip():
        return RuleViolation("empty", "the prompt is empty. Give every row a text")
    if (why := find_unstorable(text)) is not None:
        return RuleViolation("text", f"the prompt {why}")
    size = len(text.encode())
    if size > MAX_PROMPT_BYTES:
        return RuleViolation(
            "size",
            f"the prompt has {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}. Shorten or drop it",
        )
    return None


def find_unstorable(text: str) -> str | None:
    """What in a text no file or database can store, with the cure.

    >>> find_unstorable("tea"), find_unstorable("t\\0a")
    (None, 'holds a NUL character, which databases cannot store. Remove it')
    """
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        return (
            f"holds a lone surrogate after {cause.start:,} characters. Write it whole or remove it"
        )
    return (
        "holds a NUL character, which databases cannot store. Remove it" if "\x00" in text else None
    )


def _fold(text: str) -> str:
    """Normalise case and Unicode form, so that texts that look the same compare equal, full-width
    and ligatures too.
    """
    return normalize("NFKC", normalize("NFKC", text).casefold())


def _compile_term(term: str) -> re.Pattern[str]:
    words = _fold(term).split()
    before, after = (
        "" if re.match(UNSPACED, sign) else r"\w" for sign in (words[0][0], words[-1][-1])
    )
    pattern = r"\s+".join(map(re.escape, words))
    return re.compile(
        (f"(?<!{before})" if before else "") + pattern + (f"(?!{after})" if after else "")
    )
