"""Shapes of preference files, one class per shape; a file is recognised by its columns and rows."""

from collections.abc import Collection, Sequence
from itertools import islice

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.core.row_files import RowFile
from rlhf_pipeline.feedback.datasets.cells import RowRejected, is_missing
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.shapes.answers import Answers, Summaries
from rlhf_pipeline.feedback.datasets.shapes.arena import Arena
from rlhf_pipeline.feedback.datasets.shapes.argilla import ArgillaRecords
from rlhf_pipeline.feedback.datasets.shapes.base import Cells, FileShape, RowReading
from rlhf_pipeline.feedback.datasets.shapes.chosen import (
    Alpaca,
    Chosen,
    CuratedRows,
    HhRlhf,
    OpenAIPreferenceLines,
    Prepared,
    UltraFeedback,
)
from rlhf_pipeline.feedback.datasets.shapes.helpsteer import HelpSteer
from rlhf_pipeline.feedback.datasets.shapes.label_studio import LabelStudio
from rlhf_pipeline.feedback.datasets.shapes.open_assistant import OpenAssistant, OpenAssistantRows
from rlhf_pipeline.feedback.datasets.shapes.pairs import (
    PairColumns,
    StanfordPreferences,
    VoteColumns,
)
from rlhf_pipeline.feedback.datasets.shapes.unpaired import Unpaired

# In this order; a subclass of a shape that fits too is taken before it.
SHIPPED: tuple[type[FileShape], ...] = (
    ArgillaRecords,
    LabelStudio,
    OpenAssistant,
    OpenAssistantRows,
    Prepared,
    HhRlhf,
    UltraFeedback,
    Alpaca,
    CuratedRows,
    OpenAIPreferenceLines,
    Chosen,
    Unpaired,
    Arena,
    HelpSteer,
    Summaries,
    Answers,
    StanfordPreferences,
    PairColumns,
    VoteColumns,
)
SHAPES = Members[type[FileShape]]("datasets.shapes", {shape.name: shape for shape in SHIPPED})
SAMPLE_ROWS = 1_000  # by which a file is recognised


def recognise(
    rows: RowFile,
    what: str,
    names: ColumnMapping,
    format_name: str | None = None,
    left_out: Collection[str] = (),
) -> FileShape:
    """The shape of a file, ready to read its rows without the columns `left_out`. Raises
    DatasetError for a file of no shape or of two, UnknownMember for an unknown format.
    """
    sample = [row.cells for row in islice(rows, SAMPLE_ROWS) if row.fault is None]
    if format_name is not None:
        kind = SHAPES[format_name]
    else:
        columns = [*rows.columns, *names.columns]
        named = [
            {**cells, **{name: cells.get(column) for name, column in names.columns.items()}}
            for cells in sample
        ]
        fitting = [kind for kind in SHAPES.values() if kind.matches(columns, named)]
        fitting = [
            kind
            for kind in fitting
            if not any(kind is not other and _is_special(other, kind) for other in fitting)
        ]
        if len(fitting) != 1:
            fault = next((f"Line {row.line}: {row.fault}" for row in rows if row.fault), None)
            raise _explain(rows.columns, fitting, what, fault)
        (kind,) = fitting
    columns, flat = _flatten(kind, rows, sample)
    return kind(columns, flat, names, what, left_out)


def _is_special(kind: type[FileShape], other: type[FileShape]) -> bool:
    """Whether `kind` is a form of `other`, or names what `other` only guesses by columns."""
    return issubclass(kind, other) or other is PairColumns


def list_known_columns() -> set[str]:
    """The columns that shapes know."""
    return {
        column
        for kind in SHAPES.values()
        for name, aliases in kind.names.items()
        for column in (name, *aliases, *kind.metadata, *kind.repeats)
    }


def _explain(
    columns: Sequence[str], fitting: Sequence[type[FileShape]], what: str, fault: str | None
) -> DatasetError:
    if fitting:
        options = " or ".join(f"--format {kind.name} ({kind.title})" for kind in fitting)
        return DatasetError(f"{what} fits several shapes. Add {options}.")
    if not columns:
        return DatasetError(f"{what} has no rows. {fault or 'Write or copy it again'}.")
    return DatasetError(
        f"{what}: no known shape. The file has: {', '.join(columns) or 'no columns'}. Name the "
        "columns with --map prompt=COLUMN and --map chosen=COLUMN --map rejected=COLUMN, --map "
        "completion_a=COLUMN --map completion_b=COLUMN --map choice=COLUMN, or --map completion="
        "COLUMN --map label=COLUMN (1 is good, 0 bad); or name the shape with --format; known: "
        f"{', '.join(SHAPES)}."
    )


def _flatten(
    kind: type[FileShape], rows: RowFile, sample: Sequence[Cells]
) -> tuple[list[str], list[Cells]]:
    """The columns of all rows, and the first rows, as the shape flattens them."""
    if kind.flatten.__func__ is FileShape.flatten.__func__:  # type: ignore[attr-defined]
        return list(rows.columns), list(sample)
    columns: dict[str, None] = {}
    flat: list[Cells] = []
    for row in rows:
        try:
            for cells in kind.flatten(row.cells) if row.fault is None else ():
                columns.update(dict.fromkeys(name for name in cells if name not in kind.hidden))
                if len(flat) < SAMPLE_ROWS:
                    flat.append(cells)
        except RowRejected:
            continue  # reading the row raises it again, and rejects the row
    return list(columns), flat


def find_undecided(shape: FileShape, columns: Sequence[str], sample: Sequence[Cells]) -> list[str]:
    """Columns that the shape does not know and most of whose cells hold a text."""
    return [
        column
        for column in shape.binding.unused
        if column not in (*shape.metadata, *shape.repeats)
        and 2 * sum(_is_text(row.get(column)) for row in sample) > len(sample)
    ]


def _is_text(value: object) -> bool:
    if isinstance(value, list | dict):
        return bool(value)
    if not isinstance(value, str) or is_missing(value.strip()):
        return False
    try:
        float(value.replace(",", "."))
    except ValueError:
        return True
    return False


__all__ = [
    "SHAPES",
    "FileShape",
    "RowReading",
    "find_undecided",
    "list_known_columns",
    "recognise",
]
