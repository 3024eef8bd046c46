"""What a prompt generator is asked and what it gives. Knows the PROMPTS frame; knows no source of
prompts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
from pydantic import ConfigDict, Field, field_validator

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.prompts.constraints import ConstraintParams, find_unusable
from rlhf_pipeline.records import Category, Difficulty, content_hash, content_id

if TYPE_CHECKING:
    from rlhf_pipeline.prompts.selection import Selection

ROWS_AT_ONCE = 5_000


class PromptParams(ConstraintParams):
    """How many prompts of what kind, and what each must keep; quotas are exact, by largest
    remainder.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    n: int = Field(100, description="Prompts per day", ge=1, le=100_000)
    categories: dict[str, float] = Field(
        {}, description="Share per category; empty = the source's own, templates: all six equally"
    )
    difficulties: dict[str, float] = Field(
        {}, description="Share per difficulty within each category; empty = as they come"
    )
    source: str = Field(
        "templates",
        description="Generator of the prompts: templates, dataset, freeform, evolution, "
        "distilabel, or an installed one",
    )
    seed: int = Field(0, description="Seed; the seed of a day is derived from it and the day", ge=0)
    max_similarity: float = Field(
        1.0,
        description="Prompts that share more of their runs of five characters with an earlier one "
        "are left out; 1 = equal ones only",
        gt=0,
        le=1,
    )
    library: str = Field(
        "taught",
        description="Of the source templates: taught (what the embedded policy learnt), wide (the "
        "others) or all",
        pattern="^(taught|wide|all)$",
    )
    dataset: str = Field(
        "",
        description="Of the source dataset: hub id or folder of a data set, instead of the file of "
        "RLHF_PROMPTS_FILE",
    )
    split: str = Field("train", description="Of that data set", min_length=1)
    domain: str = Field(
        "",
        description="Of the source dataset: kept beside each prompt that names no domain of its "
        "own",
    )
    generations: int = Field(5, description="Of the source evolution", ge=1, le=50)
    population: int = Field(
        40,
        description="Of the source evolution: prompts of a category that live on from one "
        "generation to the next",
        ge=2,
        le=10_000,
    )
    alike: float = Field(
        0.8,
        description="Of the source evolution: max_similarity among all that ever lived",
        gt=0,
        le=1,
    )

    @field_validator("categories", "difficulties")
    @classmethod
    def _check_shares(cls, shares: dict[str, float], info: Any) -> dict[str, float]:
        known = tuple(Category) if info.field_name == "categories" else tuple(Difficulty)
        unknown = sorted(set(shares) - set(known))
        if unknown:
            raise ValueError(f"unknown {info.field_name} {unknown}; known: {', '.join(known)}")
        if shares and (min(shares.values()) < 0 or not 0 < sum(shares.values()) < float("inf")):
            raise ValueError(
                f"shares of {info.field_name} must be numbers from 0 up with a positive sum, not "
                f"{shares}"
            )
        return shares


class PromptGenerator(Protocol):
    """A source of prompts.

    `generate` offers drafts to `selection` until it is full or the source has no more: the same
    drafts in the same order for the same params and seed. What may stay (quotas, duplicates,
    constraints, excluded ids) is the selection's affair, and so are the frame and the error where
    the source gave too few. A row that is no prompt is told to `selection.report`, and costs no
    other. Raises PromptError where the source cannot be used at all.

    >>> class Greetings:
    ...     name = "greetings"
    ...     def __init__(self, source_file=None, text_generator=None): ...
    ...     def generate(self, params, *, seed, selection):
    ...         greetings = (f"Greet guest {i}." for i in range(1000))
    ...         selection.offer_all(Draft(text, "creative", "easy") for text in greetings)
    """

    name: str

    def generate(self, params: PromptParams, *, seed: int, selection: "Selection") -> None: ...


@dataclass(frozen=True, slots=True)
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
    """The seed of one day, 48 bits: days are independent of each other and of the order they are
    made in.
    """
    return int(content_hash("prompts", seed, day)[:12], 16)


def quotas(n: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`n` split by `shares`, exact, by largest remainder; equal remainders go in the order of
    `shares`.

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
    """Raises PromptError when `text` can be no prompt: empty, over the limit, not storable; `where`
    names its row.
    """
    broken = find_unusable(text)
    if broken is not None:
        raise PromptError(f"{where}: {broken.reason}.")


def quota_cells(params: PromptParams) -> Iterable[tuple[int, str | None, str | None]]:
    """The quotas of `params` as (count, category or None for any, difficulty or None for any), zero
    counts left out.
    """
    for category, n in _counts(params.n, params.categories):
        yield from (
            (count, category, level) for level, count in _counts(n, params.difficulties) if count
        )


def _counts(n: int, shares: Mapping[str, float]) -> list[tuple[str | None, int]]:
    return [*quotas(n, shares).items()] if shares else [(None, n)]


def to_frame(
    drafts: Iterable[tuple[str, Draft]], *, source: str, day: str, seed: int
) -> pd.DataFrame:
    """Drafts, with their ids, as PROMPTS rows of `day`; made piece by piece, because a dict costs
    ten times its row of a frame.
    """
    remaining = iter(drafts)
    pieces = iter(
        lambda: [_row(*pair, source, day, seed) for pair in islice(remaining, ROWS_AT_ONCE)], []
    )
    # each checked, and no id twice: to check all of it again would double the memory
    frames = [_frame(rows) for rows in pieces]
    return pd.concat(frames, ignore_index=True) if frames else PROMPTS.empty_frame()


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return check_frame(pd.DataFrame(rows, columns=list(PROMPTS.columns)), PROMPTS)


def _row(prompt_id: str, draft: Draft, source: str, day: str, seed: int) -> dict[str, Any]:
    return {
        "day": day,
        "prompt_id": prompt_id,
        "text": draft.text,
        "category": draft.category,
        "difficulty": draft.difficulty,
        "source": source,
        "template_id": draft.template_id,
        "variables": json.dumps(
            dict(draft.variables), ensure_ascii=False, sort_keys=True, default=str
        ),
        "reference": draft.reference,
        "seed": seed,
    }
