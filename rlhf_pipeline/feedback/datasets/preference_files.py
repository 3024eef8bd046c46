"""Presents a preference file as rows of comparisons and rows of votes, as its shape reads it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import FileRow, RowFile
from rlhf_pipeline.feedback.datasets.cells import is_missing
from rlhf_pipeline.feedback.datasets.mapping import SCHEMA, ColumnMapping
from rlhf_pipeline.feedback.datasets.preference import is_exported
from rlhf_pipeline.feedback.datasets.shapes import (
    FileShape,
    RowReading,
    find_undecided,
    list_known_columns,
    recognise,
)

MEANINGS = {
    "chosen": "the preferred completion",
    "rejected": "the other completion",
    "signed_strength": "choice (by its sign) and strength",
    "label": "which completions are preferred",
    "context": "part of the prompt",
    "input": "part of the prompt",
    "system": "part of the prompt",
    "history": "part of the prompt",
    "turn": "exchanges that were judged",
    "tree_id": "left out: the ids of its replies name a pair",
}
UNNAMED = "unnamed"  # the annotator of votes that name none
TEXTS = ("prompt", "completion_a", "completion_b")
DECIMALS = (
    *("strength", "signed_strength", "stated_confidence", "duration_s", "score_a", "score_b"),
    *("margin", "best"),
)
THOUSANDS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+(,\d*)?")
NO_ANNOTATOR = f"votes name no annotator and are stored as {UNNAMED!r} (--annotator names one)"
NO_VERDICT = "no verdict: the pair is stored without a vote (--offer asks people for one)"


class ReadOptions(NamedTuple):
    """What the user says about a file that it does not say itself."""

    format: str | None = None
    annotator: str | None = None
    decimal: str = "."
    keep_others: bool = False
    leave_out: Sequence[str] = ()


@dataclass(frozen=True)
class PairRow(FileRow):
    """A row of a pair with the votes on it. Before the next row is read some may be missing."""

    votes: list[FileRow] = field(default_factory=list)


class PreferenceFile:
    """A file read by its shape: `pairs` and `votes` are its rows by our names, None where it has
    none. Reading `pairs`, or `votes` of a file without pairs, counts `notes`.
    """

    def __init__(
        self, rows: RowFile, what: str, names: ColumnMapping, options: ReadOptions
    ) -> None:
        self.rows = rows
        self.notes: Counter[str] = Counter()
        self.pairs: RowFile | None = None
        self.votes: RowFile | None = None
        self.becomes: dict[str, str] = {}
        self.dropped: list[str] = []  # columns that the user has not left out
        self.names = names  # by which `pairs` and `votes` are bound
        kinds = _find_exported_kinds(rows)
        self.is_exported = bool(kinds)
        if kinds:
            self.title = f"our own export of {' and '.join(f'{kind}s' for kind in sorted(kinds))}"
            self.pairs = rows if kinds & {"comparison", "tuple"} else None
            self.votes = rows if kinds & {"vote", "tuple"} else None
            return
        renamed = find_usual_names(rows.columns, list_known_columns())
        if renamed:
            self.rows = rows = RenamedRows(rows, renamed)
            usual = {column.strip(): name for column, name in renamed.items()}
            names = names.rename(usual)
            left_out = [usual.get(column.strip(), column) for column in options.leave_out]
            options = options._replace(leave_out=left_out)
        shape = recognise(rows, what, names, options.format, options.leave_out)
        _refuse_unknown(shape, what, options)
        self.title = shape.title
        self.names = ColumnMapping(choices=dict(shape.choices))
        shape.tag_columns = self._describe_columns(shape, options)
        self._shape, self._options = shape, options
        bound = (*shape.binding.columns, "source_pair_id", *TEXTS)
        models = ("model_version_a", "model_version_b")  # nested answers may have them
        own = [SCHEMA] if SCHEMA in shape.columns else []
        if shape.has_pairs:
            self.pairs = ReadRows(self, list(dict.fromkeys((*bound, *models, "tags", *own))))
        votes = (*bound, "annotator_id", "choice", "strength", *own)
        if shape.has_verdicts:
            self.votes = ReadRows(self, list(dict.fromkeys(votes)))

    def _describe_columns(self, shape: FileShape, options: ReadOptions) -> list[str]:
        """Fill `becomes`; returns the columns that become tags."""
        self.becomes = {
            column: MEANINGS.get(name, name) for name, column in shape.binding.columns.items()
        }
        if {"0", "1"} & shape.sides.keys() and "choice" in shape.binding:
            numbers = ", ".join(f"{word} is {side}" for word, side in shape.sides.items())
            self.becomes[shape.binding.columns["choice"]] = f"choice ({numbers})"
        self.becomes |= dict.fromkeys(options.leave_out, "left out, as you say")
        tags = []
        for column in shape.binding.unused:
            if column in shape.repeats:
                self.becomes[column] = "left out: it repeats other columns"
            elif column in shape.metadata or options.keep_others:
                self.becomes[column] = "a tag"
                tags.append(column)
            else:
                self.becomes[column] = "left out (--keep-others makes it a tag)"
                self.dropped.append(column)
        return tags

    def read_pairs(self) -> Iterator[FileRow]:
        self.notes.clear()
        earlier: tuple[FileRow | None, Any] = (None, None)
        votes: list[FileRow] = []
        for row, reading in self._shape.read_rows(self._read_rows()):
            self.notes.update(reading.notes)
            n_unnamed = sum(not vote.get("annotator_id") for vote in reading.votes)
            if n_unnamed and self._options.annotator is None:
                self.notes[NO_ANNOTATOR] += n_unnamed
            if reading.pair is not None and not reading.votes:
                self.notes[NO_VERDICT] += 1
            if row.fault is not None:
                yield row
            elif reading.pair is not None:
                if row is earlier[0] and reading.pair == earlier[1]:
                    # each annotation of a nested row has its pair
                    votes += self._bind_votes(row, reading)
                    continue
                earlier, votes = (row, reading.pair), self._bind_votes(row, reading)
                tags = _write_tags(reading.tags, reading.pair.get("tags"))
                yield PairRow(row.line, reading.pair | tags, votes=votes)

    def read_votes(self) -> Iterator[FileRow]:
        if self.pairs is None:
            self.notes.clear()
        for row, reading in self._shape.read_rows(self._read_rows()):
            if row.fault is not None and self.pairs is None:
                yield row
            yield from self._bind_votes(row, reading)

    def _bind_votes(self, row: FileRow, reading: RowReading) -> list[FileRow]:
        pair = reading.pair or {}
        texts = {name: pair[name] for name in (*TEXTS, "source_pair_id") if name in pair}
        annotator = self._options.annotator or UNNAMED
        return [
            FileRow(
                row.line,
                {**vote, "annotator_id": vote.get("annotator_id") or annotator, **texts},
            )
            for vote in reading.votes
        ]

    def _read_rows(self) -> Iterator[FileRow]:
        """The rows of the file, with numbers in texts as Python writes them."""
        columns = self._shape.binding.columns
        decimals = [columns[name] for name in DECIMALS if name in columns]
        if self._options.decimal == ".":
            decimals = []
        for row in self.rows:
            numbers = {name: _parse_decimal(row.cells.get(name)) for name in decimals}
            yield FileRow(row.line, row.cells | numbers, row.fault) if numbers else row


def take_votes(pairs: Iterable[Sequence[FileRow]]) -> Iterator[list[FileRow]]:
    """The votes on each batch of pairs, as it is taken: the file is read once for both."""
    for batch in pairs:
        yield [vote for row in batch if isinstance(row, PairRow) for vote in row.votes]


class ReadRows:
    """The pairs or votes of a preference file as rows of a file."""

    is_csv = False

    def __init__(self, file: PreferenceFile, columns: list[str]) -> None:
        self._file, self.columns = file, columns
        self.size, self.notes = file.rows.size, file.rows.notes

    @property
    def position(self) -> int:
        return self._file.rows.position

    def __iter__(self) -> Iterator[FileRow]:
        return self._file.read_pairs() if self is self._file.pairs else self._file.read_votes()


def _parse_decimal(value: Any) -> Any:
    """A number with a decimal comma. A point separates thousands only before three digits."""
    if not isinstance(value, str):
        return value
    digits = value.replace(".", "") if THOUSANDS.fullmatch(value.strip()) else value
    return digits.replace(",", ".")


def _write_tags(tags: Mapping[str, Any], own: Any) -> dict[str, str]:
    """The cell of tags, where the file has some beside its column `tags`, `own`."""
    if not tags and not isinstance(own, list | dict):
        return {}
    if not is_missing(own):
        tags = {"tags": own, **tags}
    return {"tags": json.dumps(tags, ensure_ascii=False, sort_keys=True, default=str)}


def _refuse_unknown(shape: FileShape, what: str, options: ReadOptions) -> None:
    """Raises DatasetError for columns with texts that are neither mapped, kept nor left out."""
    absent = [name for name in options.leave_out if name not in shape.columns]
    if absent:
        raise DatasetError(
            f"{what}: --leave-out names missing columns {absent}. It has: "
            f"{', '.join(shape.columns)}."
        )
    undecided = [
        column
        for column in find_undecided(shape, shape.columns, shape.sample)
        if column not in options.leave_out
    ]
    if undecided and not options.keep_others:
        flags = " ".join(f"--leave-out {column!r}" for column in undecided)
        raise DatasetError(
            f"{what}: the shape {shape.name!r} does not know the columns {undecided}, which hold "
            "texts. Keep them as tags with --keep-others, read one with --map NAME=COLUMN (NAME "
            f"is context, category, reason, voted_at or another), or leave them out: {flags}."
        )


def _find_exported_kinds(rows: RowFile) -> set[str]:
    """The kinds of exported rows in a file: comparison, vote, tuple."""
    if SCHEMA not in rows.columns:
        return set()
    return {
        str(value).rpartition("/")[2]
        for value in {row.cells.get(SCHEMA) for row in rows if row.fault is None}
        if isinstance(value, str) and is_exported(value)
    }


GAPS = re.compile(r"[\s-]+")


class RenamedRows:
    """The rows of a file with other names of columns."""

    def __init__(self, rows: RowFile, renamed: Mapping[str, str]) -> None:
        self._rows, self._renamed = rows, renamed
        self.columns = [renamed.get(column, column) for column in rows.columns]
        self.size, self.is_csv, self.notes = rows.size, rows.is_csv, rows.notes

    @property
    def position(self) -> int:
        return self._rows.position

    def __iter__(self) -> Iterator[FileRow]:
        for row in self._rows:
            cells = {self._renamed.get(name, name): value for name, value in row.cells.items()}
            yield FileRow(row.line, cells, row.fault)


def find_usual_names(columns: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """The known name of each column that differs from it in letter case, or in blanks for `_`; of
    others the name without blanks around it. Two columns never get one name.
    """
    # where two known names differ in letter case, the lower one
    names = {*known}
    usual = {_fold(name): name for name in sorted(names)}
    columns = [*columns]
    renamed = {c: usual.get(_fold(c), c.strip()) for c in columns if c not in names}
    n_named = Counter(renamed.get(column, column) for column in columns)
    return {c: name for c, name in renamed.items() if name != c and n_named[name] == 1}


def _fold(name: str) -> str:
    return GAPS.sub("_", name.strip()).lower()
