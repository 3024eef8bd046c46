"""Unpaired feedback, as KTO learns from it: one completion a row, good or bad."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from rlhf_pipeline.core.conversations import normalise_prompt
from rlhf_pipeline.core.row_files import FileRow
from rlhf_pipeline.feedback.datasets.cells import (
    RowRejected,
    is_missing,
    parse_optional_flag,
    parse_text,
)
from rlhf_pipeline.feedback.datasets.mapping import VOTES, Names
from rlhf_pipeline.feedback.datasets.shapes.base import (
    CURATED,
    PREFERENCES,
    Cells,
    FileShape,
    RowReading,
    join_turns,
    place_sides,
    read_messages_of,
)

LABELS = ("kto_tag", "thumbs_up", "is_safe")
ALONE = "no completion of the other label has the same prompt: left out"


class Unpaired(FileShape):
    """Good completions are preferred to the bad ones of their prompt: each stands in one pair at
    least, the good ones and the bad ones in the order of the file.
    """

    name: ClassVar[str] = "unpaired"
    title: ClassVar[str] = "unpaired feedback (KTO): completions with a label"
    names: ClassVar[Names] = {
        **{
            name: aliases
            for name, aliases in PREFERENCES.items()
            if name not in ("completion_a", "completion_b", "choice")
        },
        "completion": ("response", "answer", "output"),
        "label": ("rating", *LABELS),
    }
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",), ("completion",), ("label",))
    metadata: ClassVar[tuple[str, ...]] = CURATED

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        if any(label in columns for label in LABELS):
            return any(c in columns for c in ("completion", *cls.names["completion"]))
        return {"completion", "label"} <= {*columns} and any(
            not is_missing(row["label"]) for row in sample
        )

    @property
    def has_pairs(self) -> bool:
        return True

    def read_rows(self, rows: Iterable[FileRow]) -> Iterator[tuple[FileRow, RowReading]]:
        """Reads the whole file before the first pair."""
        by_prompt: dict[str, tuple[list[Any], list[Any]]] = {}
        for row in rows:
            for row_or_fault, reading in self.guard(row, self.read_nested(row.cells)):
                if row_or_fault.fault is not None or reading.pair is None:
                    yield row_or_fault, reading
                    continue
                key = normalise_prompt(reading.pair["prompt"])
                of_label = by_prompt.setdefault(key, ([], []))[not reading.votes[0]["label"]]
                of_label.append((row, reading))
        for good, bad in by_prompt.values():
            if not good or not bad:
                yield from ((row, RowReading(notes=[ALONE])) for row, _ in (*good, *bad))
            for i in range(max(len(good), len(bad)) if good and bad else 0):
                yield self._pair(good[i % len(good)], bad[i % len(bad)])

    def read(self, cells: Cells) -> Iterator[RowReading]:
        bound = self.binding.select_cells(cells)
        value = self.parse_cell(self.binding.columns["completion"], bound["completion"])
        messages = read_messages_of(value)
        text, notes = (value, ()) if messages is None else join_turns(messages)
        pair = {
            "prompt": self.build_prompt(bound),
            "completion": parse_text(text, "completion", may_be_empty=True),
        }
        label = parse_optional_flag(bound["label"], "label")
        if label is None:
            raise RowRejected("label is missing")
        yield RowReading(self.describe(bound, pair), [{**bound, "label": label}], notes=notes)

    def _pair(
        self, good: tuple[FileRow, RowReading], bad: tuple[FileRow, RowReading]
    ) -> tuple[FileRow, RowReading]:
        (row, better), (other, worse) = good, bad
        assert better.pair is not None
        assert worse.pair is not None
        pair, side = place_sides(
            better.pair["prompt"], better.pair["completion"], worse.pair["completion"]
        )
        about = {name: better.votes[0][name] for name in VOTES if name in better.votes[0]}
        described = {name: text for name, text in better.pair.items() if name != "completion"}
        notes = [*better.notes, *worse.notes]
        return (
            row if row.line >= other.line else other,
            RowReading(described | pair, [about | {"choice": side}], better.tags, notes),
        )
