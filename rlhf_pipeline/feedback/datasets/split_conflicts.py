"""Refuses files that would put one prompt or split group into two splits.

A model would then be tested on a prompt it was trained on. A comparison's split is the imported
one, else that of its split group, else of its prompt, as in `votes.splits`. A split group has one
split, and so does a prompt. A prompt may be in several splits only if all its comparisons name
split groups; the import then reports the number of such prompts.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import content_id
from rlhf_pipeline.core.row_files import RowFile
from rlhf_pipeline.feedback.datasets.cells import (
    RowRejected,
    parse_identifier,
    parse_optional_identifier,
    parse_optional_word,
    parse_prompt_cell,
)
from rlhf_pipeline.feedback.datasets.mapping import Binding
from rlhf_pipeline.feedback.datasets.preference import ExportedRows
from rlhf_pipeline.feedback.votes.splits import SPLITS, split_of
from rlhf_pipeline.generate.prompts import prompt_id

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
        self, prompt: str, group: str | None, split: str | None, at: int | str, label: str
    ) -> None:
        """Add one comparison of a prompt id, named `label` in messages."""
        here = SplitPlace(split or split_of(group or prompt), group is not None, at)
        if group is not None:
            there = self._groups.setdefault(_key(content_id("split group", group)), here)
            if there.split != here.split:
                raise DatasetError(
                    f"{self._what}: split_group {group!r} is in two splits, {there}, {here}. "
                    f"{LEAK_WARNING} Give both the same split, or use two groups."
                )
        key = _key(prompt)
        there = self._prompts.setdefault(key, here)
        if not here.is_grouped and there.split == here.split and key in self.divided:
            there = self.divided[key][0]  # the second split of the prompt
        if there.split != here.split and there.is_grouped and here.is_grouped:
            self.divided.setdefault(key, (here, label))
        elif there.split != here.split:
            raise DatasetError(
                f"{self._what}: prompt {label!r} is in two splits, {there}, {here}. "
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
    progress: Progress = ignore_progress,
) -> Splits:
    """Check the splits of a whole file against each other and the store. Does not read the file if
    neither it nor the store has splits.

    `stored(only_given)` returns the splits of the store, with `only_given` only those imported with
    a split or group. Raises DatasetError, which names the prompt or group, both places and the
    cure. Invalid rows are skipped; the import rejects them.
    """
    splits, gives = Splits(what), bool(own) or "split" in binding or "split_group" in binding
    for prompt, group, split, comparison_id, begins in stored(not gives):
        splits.add(prompt, group, split, comparison_id, _abbreviate(begins))
    if not gives and not splits:
        return splits
    for n, row in enumerate(rows):
        if n % EVERY == 0:
            progress(rows.position, rows.size, "splits")
        with suppress(RowRejected):
            cells, is_own = own.unprotect_cells(row)
            prompt, group, split, label = _split_fields(binding.select_cells(cells), is_own=is_own)
            splits.add(prompt, group, split, row.line, label)
    return splits


def _split_fields(
    cells: Mapping[str, Any], *, is_own: bool
) -> tuple[str, str | None, str | None, str]:
    prompt = parse_prompt_cell(cells["prompt"])
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
