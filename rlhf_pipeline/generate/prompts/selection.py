"""Selects among a generator's drafts by quotas, duplicates and constraints.

Every generator offers its drafts to one `Selection`, so quotas are exact, no prompt comes twice and
none breaks a rule, whichever the generator. A `Report` counts the outcome of each draft.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat

import pandas as pd

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.generate.prompts.base import Draft, PromptParams, quota_cells, to_frame
from rlhf_pipeline.generate.prompts.constraints import Constraints, Embed
from rlhf_pipeline.generate.prompts.near_duplicates import NearDuplicates

KEPT_REJECTIONS = 1_000
SHOWN_CHARS = 200
SHOWN_REJECTIONS = 3

Cell = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected prompt: its place, the broken rule, the reason as a sentence, and its
    beginning.
    """

    where: str
    rule: str
    reason: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else f"{self.text!r}: {self.reason}"


@dataclass
class Report:
    """The outcome of all offered drafts. Only the first KEPT_REJECTIONS are kept."""

    n_kept: int = 0
    n_duplicates: int = 0
    n_near_duplicates: int = 0
    n_excluded: int = 0
    n_rejected: Counter[str] = field(default_factory=Counter)  # by rule
    rejections: list[Rejection] = field(default_factory=list)

    def reject(self, rule: str, reason: str, *, where: str = "", text: str = "") -> None:
        rejection = Rejection(where, rule, reason, text[:SHOWN_CHARS])
        self.n_rejected[rule] += 1
        if len(self.rejections) < KEPT_REJECTIONS:
            self.rejections.append(rejection)

    def add(self, other: "Report") -> None:
        """Add the outcome of intermediate prompts, without kept ones."""
        self.n_duplicates += other.n_duplicates
        self.n_near_duplicates += other.n_near_duplicates
        self.n_excluded += other.n_excluded
        self.n_rejected += other.n_rejected
        self.rejections += other.rejections[: KEPT_REJECTIONS - len(self.rejections)]

    @property
    def counts(self) -> dict[str, int]:
        """Counts by outcome."""
        return {
            "kept": self.n_kept,
            "duplicates": self.n_duplicates,
            "near-duplicates": self.n_near_duplicates,
            "excluded": self.n_excluded,
            "rejected": self.n_rejected.total(),
        }

    def summary(self) -> str:
        """One line for people.

        >>> report = Report(n_kept=97)
        >>> report.reject("row", "no text. Give a column text", where="p.jsonl, line 3")
        >>> report.summary()
        '97 kept, 0 duplicates, 0 near-duplicates, 0 excluded, 1 rejected (1 by row)'
        """
        counts = ", ".join(f"{n:,} {what}" for what, n in self.counts.items())
        rules = ", ".join(f"{n:,} by {rule}" for rule, n in self.n_rejected.most_common())
        return f"{counts} ({rules})" if rules else counts


class Selection:
    """Takes drafts until the quotas of `params` are full."""

    def __init__(
        self,
        params: PromptParams,
        *,
        exclude: frozenset[str] = frozenset(),
        report: Report | None = None,
        embed: Embed | None = None,
    ) -> None:
        """`exclude` holds ids to leave out; `embed` is a sentence encoder, which a topic needs.
        Raises PromptError for a topic without it.
        """
        self.report = report if report is not None else Report()
        self._exclude = exclude
        self._embed = embed
        self._constraints = Constraints(params, embed)
        self._alike = NearDuplicates(params.max_similarity) if params.max_similarity < 1 else None
        self._ids: set[str] = set()
        self.must_be_full = True
        self._offered_categories: set[str] = set()
        self._set_quotas(params)

    def divide_equally(self, categories: Iterable[str]) -> None:
        """Set equal shares of the source's categories if the params name none; call it before
        anything is offered.
        """
        if not self._params.categories:
            self._set_quotas(
                self._params.model_copy(update={"categories": dict.fromkeys(categories, 1.0)})
            )

    def derive(self, params: PromptParams) -> "Selection":
        """An empty selection for `params` with the same exclusions, which may stay short of its
        quotas. It has its own report.
        """
        other = Selection(params, exclude=self._exclude, embed=self._embed)
        other.must_be_full = False
        return other

    def _set_quotas(self, params: PromptParams) -> None:
        self._params = params
        self._quotas: dict[Cell, int] = {
            (category, level): n for n, category, level in quota_cells(params)
        }
        self._taken: dict[Cell, list[tuple[str, Draft]]] = {cell: [] for cell in self._quotas}

    @property
    def drafts(self) -> Iterator[Draft]:
        """The accepted drafts, cell by cell in the order of the quotas."""
        return (draft for cell in self._taken.values() for _, draft in cell)

    @property
    def is_full(self) -> bool:
        return not self.open_cells

    @property
    def open_cells(self) -> dict[Cell, int]:
        """Number of missing prompts by (category or None for any, difficulty or None for
        any); full cells left out.
        """
        return {
            cell: n
            for cell, quota in self._quotas.items()
            if (n := quota - len(self._taken[cell])) > 0
        }

    def offer_all(self, drafts: Iterable[Draft], places: Iterable[str] = ()) -> None:
        """Offer drafts until the selection is full. `places` name the drafts in rejections."""
        # `places` may be fewer
        for draft, where in zip(drafts, chain(places, repeat(""))):  # noqa: B905
            if self.is_full:
                return
            self.offer(draft, where)

    def _has_room(self, draft: Draft) -> bool:
        cell = self._cell(draft)
        return len(self._taken.get(cell, ())) < self._quotas.get(cell, 0)

    def offer(self, draft: Draft, where: str = "") -> bool:
        """Take the draft if it is acceptable and its cell has room; return whether it was taken."""
        self._offered_categories.add(draft.category)
        if not self._has_room(draft) or not self.accepts(draft, where):
            return False
        self.take(draft)
        return True

    def accepts(self, draft: Draft, where: str = "") -> bool:
        """Whether the draft is acceptable, quotas aside; otherwise the report records the
        reason.
        """
        name = draft.prompt_id
        if name in self._exclude:
            self.report.n_excluded += 1
            return False
        if name in self._ids:
            self.report.n_duplicates += 1
            return False
        violation = self._constraints.find_violation(render_transcript(draft.text))
        if violation is not None:
            self.report.reject(*violation, where=where, text=draft.text)
            return False
        if self._alike is not None and self._alike.find(draft.text) is not None:
            self.report.n_near_duplicates += 1
            return False
        return True

    def take(self, draft: Draft) -> None:
        """Take a draft that `accepts` accepted."""
        name = draft.prompt_id
        self._ids.add(name)
        if self._alike is not None:
            self._alike.add(draft.text)
        self._taken[self._cell(draft)].append((name, draft))
        self.report.n_kept += 1

    def build_frame(self, *, source: str, what: str, day: str, seed: int) -> pd.DataFrame:
        """The PROMPTS, cell by cell in the order of the quotas; called once, because the drafts
        make room for their rows.

        Raises PromptError naming the first quota that `what` could not fill.
        """
        for (category, level), n_missing in self.open_cells.items():
            n_found = len(self._taken[category, level])
            raise PromptError(
                self._describe_shortage(what, n_missing + n_found, n_found, category, level)
            )
        self._ids.clear()
        return to_frame(self._drain_drafts(), source=source, day=day, seed=seed)

    def _drain_drafts(self) -> Iterator[tuple[str, Draft]]:
        for cell in self._taken.values():
            cell.reverse()
            while cell:
                yield cell.pop()

    def _cell(self, draft: Draft) -> Cell:
        return (
            draft.category if self._params.categories else None,
            draft.difficulty if self._params.difficulties else None,
        )

    def _describe_shortage(
        self, what: str, n_wanted: int, n_found: int, category: str | None, level: str | None
    ) -> str:
        kind = " ".join(k for k in (level, category) if k) or "new"
        message = (
            f"{what} has {n_found} unused {kind} prompts, {n_wanted} were asked for. "
            f"Lower n or the share of {kind}, or add prompts."
        )
        if self.report.n_excluded:
            message += f" {self.report.n_excluded:,} more are excluded from this run."
        if category and self._offered_categories and category not in self._offered_categories:
            message += f" Its categories: {', '.join(sorted(self._offered_categories))}."
        rejected = self.report.rejections
        if not rejected:
            return message
        examples = "; ".join(map(str, rejected[:SHOWN_REJECTIONS]))
        return f"{message} {self.report.n_rejected.total():,} were rejected, the first: {examples}."
