"""The protocol of a prompt generator, its parameters, and the drafts it offers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rlhf_pipeline.core.conversations import prompt_id
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.core.records import Difficulty, content_hash
from rlhf_pipeline.generate.prompts.constraints import ConstraintParams, find_unusable

if TYPE_CHECKING:
    from rlhf_pipeline.generate.prompts.selection import Selection

ROWS_AT_ONCE = 5_000
MAX_CATEGORY = 60  # characters


def parse_category(value: object) -> str:
    """A project's own category, or one of `Category`: trimmed, in lower case.

    Raises ValueError for another type, and for an empty, long or unprintable text.

    >>> parse_category(" Legal ")
    'legal'
    """
    name = value.strip().lower() if isinstance(value, str) else ""
    if not 0 < len(name) <= MAX_CATEGORY or not name.isprintable():
        text = repr(value)[:MAX_CATEGORY]
        raise ValueError(
            f"category {text} must be a printable name of at most {MAX_CATEGORY} characters"
        )
    return name


class PromptParams(ConstraintParams):
    """Parameters of every source: how many prompts of what kind, and the rules each must keep.

    Quotas are exact, by largest remainder.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    n: int = Field(100, description="Prompts per day", ge=1, le=100_000)
    categories: dict[str, float] = Field(
        {}, description="Share per category; empty = the source's own, templates: all six equally"
    )
    difficulties: dict[str, float] = Field(
        {},
        description="Share per difficulty within each category; empty = in the proportions "
        "of the source",
    )
    source: str = Field(
        "templates", description="Source of the prompts; `rlhf prompts sources` lists them"
    )
    seed: int = Field(0, description="Seed; the seed of a day is derived from it and the day", ge=0)
    max_similarity: float = Field(
        1.0,
        description="Maximum similarity to an earlier prompt (share of common runs of five "
        "characters); 1 = only equal prompts are left out",
        gt=0,
        le=1,
    )

    @field_validator("categories", "difficulties")
    @classmethod
    def _check_shares(cls, shares: dict[str, float], info: Any) -> dict[str, float]:
        if info.field_name == "categories":
            shares = {parse_category(name): share for name, share in shares.items()}
        elif unknown := sorted(set(shares) - set(Difficulty)):
            raise ValueError(f"unknown difficulties {unknown}; known: {', '.join(Difficulty)}")
        if shares and (min(shares.values()) < 0 or not 0 < sum(shares.values()) < float("inf")):
            raise ValueError(
                f"shares of {info.field_name} must be non-negative numbers with a positive sum, "
                f"not "
                f"{shares}"
            )
        return shares


class PromptGenerator(Protocol):
    """A source of prompts.

    The constructor receives its input file (`source_file`) and a writer (`text_generator`).
    `Params` holds its own parameters.

    `generate` offers drafts to `selection` until it is full or the source has no more: the same
    drafts in the same order for the same params and seed. `params` has the common parameters and
    those of every source: `select_params(Params, params)` gives its own. The selection applies
    quotas and constraints, drops duplicates and excluded ids, builds the frame, and raises if the
    source gave too few. Report a row that is not a prompt to `selection.report`; the other rows
    still count. Raises PromptError if the source cannot be used at all.

    >>> from rlhf_pipeline.core.plugins import NoParams
    >>> class Greetings:
    ...     name, Params = "greetings", NoParams
    ...     def __init__(self, source_file=None, text_generator=None): ...
    ...     def generate(self, params, *, seed, selection):
    ...         greetings = (f"Greet guest {i}." for i in range(1000))
    ...         selection.offer_all(Draft(text, "creative", "easy") for text in greetings)
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def __init__(
        self, source_file: Path | None = None, text_generator: TextGenerator | None = None
    ) -> None: ...

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


def day_seed(seed: int, day: str) -> int:
    """The seed of one day, 48 bits: days are independent of each other and of their order."""
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
    """Raises PromptError for a text that cannot be a prompt: empty, too large or not storable.
    `where` names its row.
    """
    violation = find_unusable(text)
    if violation is not None:
        raise PromptError(f"{where}: {violation.reason}.")


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
    """Drafts with their ids as PROMPTS rows of `day`.

    Built in pieces: a row as a dict takes ten times the memory of a row in a frame.
    """
    remaining = iter(drafts)
    pieces = iter(
        lambda: [_row(*pair, source, day, seed) for pair in islice(remaining, ROWS_AT_ONCE)], []
    )
    # each piece is checked and ids are unique: checking the whole would double the memory
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
