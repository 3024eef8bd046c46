"""Refuses files that would put one prompt or split group into two splits.

A model would then be tested on a prompt it was trained on. A comparison's split is the imported
one, else that of its split group, else of its prompt, as in `votes.splits`. A split group has one
split, and so does a prompt. A prompt may be in several splits only if all its comparisons name
split groups; the import then reports the number of such prompts.

Rows without split and group are not kept: their split is the hash of the prompt.
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
from rlhf_pipeline.datasets.mapping import Binding
from rlhf_pipeline.datasets.preference import ExportedRows
from rlhf_pipeline.datasets.rejects import ImportProgress, ignore_import_progress
from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.prompts import prompt_id
from rlhf_pipeline.records import content_id
from rlhf_pipeline.row_files import RowFile
from rlhf_pipeline.votes.splits import SPLITS, split_of

NAMES = tuple(SPLITS)
SHOWN = 60  # characters of a prompt in a message
EVERY = 2_000  # rows between two progress reports


# A stored split: prompt id, split group, split, id of a comparison with them, beginning of the
# prompt.
StoredSplit = tuple[str, str | None, str | None, str, str]


class SplitPlace(NamedTuple):
    """The split of a prompt or group and where it was found: a line of the file or a comparison of
    the store.
    """

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
    """Collects the splits of prompts and groups; raises DatasetError if one is in two splits."""

    def __init__(self, what: str) -> None:
        self._what = what
        # Keys are the first 64 bits of a hash, which take a third of the memory of a million ids.
        self._groups: dict[int, SplitPlace] = {}
        self._prompts: dict[int, SplitPlace] = {}
        # Prompts in several splits, one per group: a place in a second split, and the beginning of
        # the prompt.
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
        """Add one comparison of a prompt id, `shown` in messages; with `keep=False` only check it
        against the collected ones.
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
                f"{LEAK_WARNING} Give both the same split, or use two groups."
            )

    def _add_prompt(self, key: int, here: SplitPlace, shown: str, *, keep: bool) -> None:
        there = self._prompts.get(key)
        if there is None:
            if keep:
                self._prompts[key] = here
            return
        if not here.is_grouped and there.split == here.split and key in self.divided:
            there = self.divided[key][0]  # the second split of the prompt
        if there.split != here.split and there.is_grouped and here.is_grouped:
            self.divided.setdefault(key, (here, shown))
        elif there.split != here.split:
            raise DatasetError(
                f"{self._what}: prompt {shown!r} is in two splits, {there}, {here}. "
                f"{LEAK_WARNING} Give both the same split, leave it out to split by prompt, or "
                "give each its own split_group if they are different tasks."
            )
        elif there.is_grouped and not here.is_grouped:
            self._prompts[key] = here

    def describe_divided(self) -> str | None:
        """Note on the prompts in several splits because of their groups; None without any."""
        if not self.divided:
            return None
        n, (_, first) = len(self.divided), next(iter(self.divided.values()))
        return (
            f"{n:,} prompt{'' if n == 1 else 's'}, first {first!r}, in several splits because of "
            "their split_groups: models are tested on prompts they were trained on"
        )


LEAK_WARNING = "A model would be tested on data it was trained on; nothing was imported."


def refuse_split_conflicts(
    rows: RowFile,
    binding: Binding,
    own: ExportedRows,
    what: str,
    stored: Callable[[bool], Iterable[StoredSplit]],
    progress: ImportProgress = ignore_import_progress,
) -> Splits:
    """Check the splits of a whole file against each other and the store.

    Reads the file once for rows with splits, and again for rows without; not at all if neither the
    file nor the store has splits.

    `stored(only_given)` returns the splits of the store, with `only_given` only those imported with
    a split or group. Raises DatasetError, which names the prompt or group, both places and the
    cure. Invalid rows are skipped; the import rejects them.
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
    """Add the rows with a split or group (`are_given`), or those without. Returns the number of
    skipped rows.
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
    group = parse_optional_identifier(cells.get("split_group"), "split_group")
    split = parse_optional_word(cells.get("split"), "split", NAMES)
    return key, group, split, _abbreviate(prompt)


def _abbreviate(prompt: str) -> str:
    return prompt if len(prompt) <= SHOWN else f"{prompt[:SHOWN]}…"


def _key(name: str) -> int:
    return int(content_id("split of", name)[:16], 16)
