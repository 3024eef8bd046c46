"""Whether a file would put one prompt into two splits. Knows rows and which splits are stored;
writes nothing.

What is learnt of a prompt would then be judged on it. A comparison's split is the one given with
it, else that of its split group, else of its prompt, as `votes.splits` has it. A split group has
one split, and so has a prompt; only where all its comparisons name split groups may a prompt stand
in several, one a group: who made the file says that these are different things, and is told how
many.

Of rows that give neither only a hash is known, the same for all of a prompt: nothing is kept of
them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rlhf_pipeline.datasets.cells import (
    RowRejected,
    parse_identifier,
    parse_optional_identifier,
    parse_optional_word,
    parse_text,
)
from rlhf_pipeline.datasets.exported_rows import ExportedRows
from rlhf_pipeline.datasets.import_counts import ImportProgress, ignore_import_progress
from rlhf_pipeline.datasets.mapping import Binding
from rlhf_pipeline.datasets.row_files import RowFile
from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.prompts import prompt_id
from rlhf_pipeline.records import content_id
from rlhf_pipeline.votes.splits import SPLITS, split_of

NAMES = tuple(SPLITS)
SHOWN = 60  # characters of a prompt in a message
EVERY = 2_000  # rows between two words on how far it has come


# What is stored: prompt id, split group, split, id of a comparison that has them, how the prompt
# begins.
StoredSplit = tuple[str, str | None, str | None, str, str]


class SplitPlace(NamedTuple):
    """Where a prompt or a group stands: a line of the file, or a comparison of the store."""

    split: str
    is_grouped: bool
    at: int | str

    def __str__(self) -> str:
        where = (
            f"line {self.at:,}"
            if isinstance(self.at, int)
            else f"comparison {self.at} of the store"
        )
        return f"{where} in {self.split}"


class Splits:
    """The splits of prompts and groups, told place by place. Raises DatasetError where one stands
    in two.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        # By the first 64 bits of a hash, which for a million prompts takes a third of what their
        # ids would.
        self._groups: dict[int, SplitPlace] = {}
        self._prompts: dict[int, SplitPlace] = {}
        # Prompts in several splits, one a group: a place in another split than the first, and how
        # they begin.
        self.divided: dict[int, tuple[SplitPlace, str]] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def add(
        self,
        prompt: str,
        group: str | None,
        split: str | None,
        at: int | str,
        shown: str,
        *,
        keep: bool = True,
    ) -> None:
        """One comparison of a prompt (by id), `shown` in messages; with `keep` false it is only
        held against what is kept.
        """
        here = SplitPlace(split or split_of(group or prompt), group is not None, at)
        if group is not None:
            self._add_group(group, here)
        self._add_prompt(_key(prompt), here, shown, keep=keep)

    def _add_group(self, group: str, here: SplitPlace) -> None:
        there = self._groups.setdefault(_key(content_id("split group", group)), here)
        if there.split != here.split:
            raise DatasetError(
                f"{self._what}: split_group {group!r} is in two splits, {there}, {here}. "
                f"{LEAK_WARNING} Give both one split, or name two groups."
            )

    def _add_prompt(self, key: int, here: SplitPlace, shown: str, *, keep: bool) -> None:
        there = self._prompts.get(key)
        if there is None:
            if keep:
                self._prompts[key] = here
            return
        if not here.is_grouped and there.split == here.split and key in self.divided:
            there = self.divided[key][0]  # the other split it is in
        if there.split != here.split and there.is_grouped and here.is_grouped:
            self.divided.setdefault(key, (here, shown))
        elif there.split != here.split:
            raise DatasetError(
                f"{self._what}: prompt {shown!r} is in two splits, {there}, {here}. {LEAK_WARNING} "
                "Give both one split, or leave it out, so that the prompt decides; where they are "
                "different things, name a split_group of each."
            )
        elif there.is_grouped and not here.is_grouped:
            self._prompts[key] = here

    def describe_divided(self) -> str | None:
        """How many prompts are in several splits because their groups are; None where none is."""
        if not self.divided:
            return None
        n, (_, first) = len(self.divided), next(iter(self.divided.values()))
        return (
            f"{n:,} prompt{'' if n == 1 else 's'}, first {first!r}, in several splits, as the "
            "split_groups say: what is learnt of them is judged on them too"
        )


LEAK_WARNING = "What is learnt of it would be judged on it too; nothing was imported."


def refuse_split_conflicts(
    rows: RowFile,
    binding: Binding,
    own: ExportedRows,
    what: str,
    stored: Callable[[bool], Iterable[StoredSplit]],
    progress: ImportProgress = ignore_import_progress,
) -> Splits:
    """Read the whole file once where it gives splits, and again for rows that do not; nothing where
    nobody ever gave one.

    `stored(only_given)` are the splits of the store, `only_given` those that came with a split or a
    group. Raises DatasetError naming the prompt or group, both places and the cure. Rows that
    cannot be read are left to the import, which rejects them.
    """
    splits, gives = Splits(what), bool(own) or "split" in binding or "split_group" in binding
    n_open = 0
    if gives:
        n_open = _add_rows(rows, binding, own, splits, progress, are_given=True)
    for prompt, group, split, comparison_id, begins in stored(not len(splits)):
        splits.add(
            prompt,
            group,
            split,
            comparison_id,
            _abbreviate(begins),
            keep=group is not None or split is not None,
        )
    if len(splits) and (n_open or not gives):
        _add_rows(rows, binding, own, splits, progress, are_given=False)
    return splits


def _add_rows(
    rows: RowFile,
    binding: Binding,
    own: ExportedRows,
    splits: Splits,
    progress: ImportProgress,
    *,
    are_given: bool,
) -> int:
    """Place the rows that give a split or group, or those that do not; how many were passed
    over.
    """
    n_passed = 0
    for n, row in enumerate(rows):
        if n % EVERY == 0:
            progress("splits", rows.position, rows.size)
        if row.fault is not None:
            continue
        try:
            plain, is_own = own.unprotect_cells(row.cells)
            prompt, group, split, shown = _split_fields(binding.select_cells(plain), is_own=is_own)
        except RowRejected:
            continue
        if (group is not None or split is not None) != are_given:
            n_passed += 1
            continue
        splits.add(prompt, group, split, row.line, shown, keep=are_given)
    return n_passed


def _split_fields(
    cells: Mapping[str, Any], *, is_own: bool
) -> tuple[str, str | None, str | None, str]:
    prompt = parse_text(cells["prompt"], "prompt")
    key = (
        parse_identifier(cells["prompt_id"], "prompt_id")
        if is_own and "prompt_id" in cells
        else prompt_id(prompt, None)
    )
    group, split = (
        parse_optional_identifier(cells.get("split_group"), "split_group"),
        parse_optional_word(cells.get("split"), "split", NAMES),
    )
    return key, group, split, _abbreviate(prompt)


def _abbreviate(prompt: str) -> str:
    return prompt if len(prompt) <= SHOWN else f"{prompt[:SHOWN]}…"


def _key(name: str) -> int:
    return int(content_id("split of", name)[:16], 16)
