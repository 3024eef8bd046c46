"""What a prompt generator is asked and what it gives back. Knows the PROMPTS frame; knows no source of prompts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.records import Category, Difficulty, content_hash, content_id

MAX_PROMPT_BYTES = 100_000


class PromptParams(BaseModel):
    """How many prompts of what kind; quotas are exact, by largest remainder."""

    model_config = ConfigDict(extra="forbid")

    n: int = Field(100, description="Prompts per day", ge=1, le=100_000)
    categories: dict[str, float] = Field({}, description="Share per category; empty = the source's own, templates: all six equally")
    difficulties: dict[str, float] = Field({}, description="Share per difficulty within each category; empty = as they come")
    source: str = Field("templates", description="Generator of the prompts: templates, dataset, freeform, or an installed one")
    seed: int = Field(0, description="Seed; the seed of a day is derived from it and the day", ge=0)

    @field_validator("categories", "difficulties")
    @classmethod
    def _shares(cls, shares: dict[str, float], info: Any) -> dict[str, float]:
        known = tuple(Category) if info.field_name == "categories" else tuple(Difficulty)
        unknown = sorted(set(shares) - set(known))
        if unknown:
            raise ValueError(f"unknown {info.field_name} {unknown}; known: {', '.join(known)}")
        if shares and (min(shares.values()) < 0 or not 0 < sum(shares.values()) < float("inf")):
            raise ValueError(f"shares of {info.field_name} must be numbers from 0 up with a positive sum, not {shares}")
        return shares


class PromptGenerator(Protocol):
    """A source of prompts.

    `generate` returns exactly `params.n` rows of PROMPTS, the same for the same params, day and seed, without
    duplicates and without a prompt whose id is in `exclude`; it raises PromptError when the source cannot give them.
    """

    name: str

    def generate(self, params: PromptParams, *, day: str, seed: int, exclude: frozenset[str]) -> pd.DataFrame: ...


@dataclass(frozen=True)
class Draft:
    """A prompt before it belongs to a day."""

    text: str
    category: str
    difficulty: str
    reference: str | None = None
    template_id: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_id(self) -> str:
        return prompt_id(self.text, self.reference)


def prompt_id(text: str, reference: str | None) -> str:
    """Content id of a prompt: its text and its checkable answer."""
    return content_id("prompt", text, reference or "")


def day_seed(seed: int, day: str) -> int:
    """The seed of one day, 48 bits: days are independent of each other and of the order they are made in."""
    return int(content_hash("prompts", seed, day)[:12], 16)


def quotas(n: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`n` split by `shares`, exact, by largest remainder; equal remainders go in the order of `shares`.

    >>> quotas(10, {"reasoning": 1, "factual": 1, "coding": 1})
    {'reasoning': 4, 'factual': 3, 'coding': 3}
    """
    total = sum(shares.values())
    exact = {name: n * share / total for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(shares, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: n - sum(counts.values())]:
        counts[name] += 1
    return counts


def check_size(text: str, where: str) -> None:
    """Raises PromptError when `text` is empty or over the limit; `where` names its row."""
    if not text.strip():
        raise PromptError(f"{where}: the prompt is empty. Give every row a text.")
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size > MAX_PROMPT_BYTES:
        raise PromptError(f"{where}: the prompt has {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}. Shorten or drop it.")


def choose(drafts: Sequence[Draft], params: PromptParams, exclude: frozenset[str], *, what: str) -> list[Draft]:
    """The first `params.n` usable drafts in their order, by the quotas of category and difficulty.

    Duplicates and excluded ids are passed over. Raises PromptError naming the quota that `what` cannot fill.
    """
    unique = {d.prompt_id: d for d in reversed(drafts)}  # reversed: the first of equals stays
    pool = [d for d in drafts if d.prompt_id not in exclude and unique[d.prompt_id] is d]
    chosen: list[Draft] = []
    for n, category, difficulty in cells(params):
        fitting = [d for d in pool if category in (None, d.category) and difficulty in (None, d.difficulty)][:n]
        if len(fitting) < n:
            raise PromptError(shortage(what, n, len(fitting), category, difficulty))
        chosen += fitting
    return chosen


def cells(params: PromptParams) -> Iterable[tuple[int, str | None, str | None]]:
    """The quotas of `params` as (count, category or None for any, difficulty or None for any), zero counts left out."""
    for category, n in _counts(params.n, params.categories):
        yield from ((count, category, level) for level, count in _counts(n, params.difficulties) if count)


def _counts(n: int, shares: Mapping[str, float]) -> list[tuple[str | None, int]]:
    return [*quotas(n, shares).items()] if shares else [(None, n)]


def shortage(what: str, wanted: int, found: int, category: str | None, difficulty: str | None) -> str:
    """Words for a quota that cannot be met."""
    kind = " ".join(k for k in (difficulty, category) if k) or "new"
    return (
        f"{what} has {found} unused {kind} prompts, {wanted} were asked for. "
        f"Lower n or the share of {kind}, add prompts, or exclude fewer earlier ones."
    )


def to_frame(drafts: Sequence[Draft], *, source: str, day: str, seed: int) -> pd.DataFrame:
    """The drafts as PROMPTS rows of `day`."""
    rows = [
        {
            "day": day,
            "prompt_id": d.prompt_id,
            "text": d.text,
            "category": d.category,
            "difficulty": d.difficulty,
            "source": source,
            "template_id": d.template_id,
            "variables": json.dumps(dict(d.variables), ensure_ascii=False, sort_keys=True),
            "reference": d.reference,
            "seed": seed,
        }
        for d in drafts
    ]
    return check_frame(pd.DataFrame(rows, columns=list(PROMPTS.columns)), PROMPTS)
