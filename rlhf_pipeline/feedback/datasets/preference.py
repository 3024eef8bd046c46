"""The preference format, version 1: export rows of comparisons, votes and tuples.

schemas/preference-v1.schema.json describes the same rows as JSON. Every row begins with `schema`,
which names the version and the kind of row. Adding, removing or redefining a column needs a new
version.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import FrameError, UnknownComparison
from rlhf_pipeline.core.frames import (
    COMPARISONS,
    EXPORTED_VOTES,
    Column,
    FrameSchema,
    check_frame,
    text,
    time,
)
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.core.row_files import FileRow, RowFile
from rlhf_pipeline.feedback.datasets.cells import RowRejected
from rlhf_pipeline.feedback.datasets.formats.csv import unprotect_cell
from rlhf_pipeline.feedback.datasets.mapping import SCHEMA, Binding
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes
from rlhf_pipeline.feedback.votes.splits import split_of

# A row, what was made of it, and whether it was exported; a row, and why it is rejected.
ParsedRow = tuple[FileRow, dict[str, Any], bool]
RefusedRow = tuple[FileRow, str]
FAMILY, VERSION = "preference", 1
TUPLE_CHOICES = (Choice.A.value, Choice.B.value, Choice.TIE.value)


def _row_schema(kind: str, columns: dict[str, Column], key: tuple[str, ...] = ()) -> FrameSchema:
    name = f"{FAMILY}-v{VERSION}/{kind}"
    return FrameSchema(
        name,
        {"schema": text("version of the format and kind of row", values=(name,)), **columns},
        key,
    )


_COMPARISON = COMPARISONS.columns | {
    "comparison_id": text("id of the comparison, kept by exports and imports"),
    "prompt_id": text("id of the prompt; comparisons of one prompt are in one split"),
    "day": text("UTC day of the comparison or of its import"),
}
_VOTE = EXPORTED_VOTES.columns | {
    "voted_at": time("when the annotator judged; missing if not recorded", nullable=True),
}
_SOURCE = {
    "source": text("source data set, or the project that made the comparison"),
    "source_pair_id": text("id of the comparison in its source"),
}

COMPARISON_ROWS = _row_schema(
    "comparison",
    {
        "comparison_id": _COMPARISON["comparison_id"],
        **_SOURCE,
        **{name: _COMPARISON[name] for name in ("prompt", "completion_a", "completion_b")},
        **{
            name: _COMPARISON[name]
            for name in (
                "prompt_id",
                "completion_a_id",
                "completion_b_id",
                "model_version_a",
                "model_version_b",
            )
        },
        **{
            name: _COMPARISON[name]
            for name in ("category", "repeat_of", "split_group", "split", "gold", "flag", "tags")
        },
        **{name: _COMPARISON[name] for name in ("day", "position", "seed")},
    },
    key=("comparison_id",),
)

VOTE_ROWS = _row_schema(
    "vote",
    {
        "comparison_id": _COMPARISON["comparison_id"],
        "source_pair_id": _SOURCE["source_pair_id"],
        **{
            name: _VOTE[name]
            for name in (
                "annotator_id",
                "annotator_kind",
                "choice",
                "strength",
                "voted_at",
                "duration_s",
            )
        },
        **{
            name: _VOTE[name]
            for name in (
                "stated_confidence",
                "reason",
                "task_id",
                "is_blind",
                "dimensions",
                "highlights",
                "is_superseded",
            )
        },
    },
)

TUPLE_ROWS = _row_schema(
    "tuple",
    {
        "prompt": _COMPARISON["prompt"],
        "a": _COMPARISON["completion_a"],
        "b": _COMPARISON["completion_b"],
        "preferred": text("side that the annotator preferred", values=TUPLE_CHOICES),
        "comparison_id": _COMPARISON["comparison_id"],
        **_SOURCE,
        **{
            name: _VOTE[name]
            for name in ("annotator_id", "annotator_kind", "strength", "voted_at", "is_blind")
        },
        "split": text(
            "split as imported, else by hash of the prompt", values=("train", "calib", "test")
        ),
    },
)

KINDS: dict[str, FrameSchema] = {
    "comparison": COMPARISON_ROWS,
    "vote": VOTE_ROWS,
    "tuple": TUPLE_ROWS,
}


def is_exported(value: object) -> bool:
    """Whether a row's `schema` value names this format. Raises FrameError for an unknown version or
    kind.

    >>> is_exported("preference-v1/vote"), is_exported("argument pairs"), is_exported(None)
    (True, False, False)
    """
    if not isinstance(value, str) or not value.startswith(f"{FAMILY}-v"):
        return False
    schemas = [schema.name for schema in KINDS.values()]
    if value not in schemas:
        raise FrameError(
            f"Unknown row schema {value!r}; known: {', '.join(schemas)}. Install the version that "
            "wrote the rows."
        )
    return True


def comparison_rows(comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    """COMPARISON_ROWS of COMPARISONS of `project`. Its own comparisons get the project as source
    and their comparison_id as source_pair_id.
    """
    return _apply_schema(
        _fill_source(check_frame(comparisons, COMPARISONS), project), COMPARISON_ROWS
    )


def vote_rows(votes: pd.DataFrame, *, superseded: bool = False) -> pd.DataFrame:
    """VOTE_ROWS of EXPORTED_VOTES: all passes, skips and ties; superseded votes only if
    `superseded`.
    """
    checked = check_frame(votes, EXPORTED_VOTES)
    rows = checked if superseded else checked[~checked["is_superseded"]]
    return _apply_schema(
        rows.assign(source_pair_id=rows["source_pair_id"].fillna(rows["comparison_id"])), VOTE_ROWS
    )


def tuple_rows(votes: pd.DataFrame, comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    """TUPLE_ROWS (prompt, a, b, preferred) of the votes in EXPORTED_VOTES usable for training, and
    their COMPARISONS.

    Leaves out superseded votes and earlier passes, skips and `both_bad`, and, as for preference
    pairs, machine votes and votes on flagged comparisons and repeats. Raises UnknownComparison for
    a vote whose comparison is not in `comparisons`.
    """
    cast = check_frame(votes, EXPORTED_VOTES)
    comparisons = _fill_source(check_frame(comparisons, COMPARISONS), project)
    unknown = cast.loc[~cast["comparison_id"].isin(comparisons["comparison_id"])]
    if not unknown.empty:
        vote = unknown.iloc[0]
        raise UnknownComparison(
            f"Vote {vote['vote_id']} is on comparison {vote['comparison_id']}, which is not in "
            "`comparisons`. Pass it as well."
        )
    hashed = comparisons["split_group"].fillna(comparisons["prompt_id"]).map(split_of)
    pairs = comparisons.assign(split=comparisons["split"].fillna(hashed)).rename(
        columns={"completion_a": "a", "completion_b": "b"}
    )
    teaches = pairs.loc[
        pairs["flag"].isna() & pairs["repeat_of"].isna(),
        ["comparison_id", *_SOURCE, "prompt", "a", "b", "split"],
    ]
    choices = drop_machine_votes(
        cast[cast["is_counting"] & cast["choice"].isin(TUPLE_CHOICES)]
    ).drop(columns="source_pair_id")
    joined = choices.merge(teaches, on="comparison_id").sort_values("seq")
    return _apply_schema(joined.rename(columns={"choice": "preferred"}), TUPLE_ROWS)


def _fill_source(comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    return comparisons.assign(
        source=comparisons["source"].fillna(project),
        source_pair_id=comparisons["source_pair_id"].fillna(comparisons["comparison_id"]),
    )


def _apply_schema(frame: pd.DataFrame, schema: FrameSchema) -> pd.DataFrame:
    return check_frame(frame.assign(schema=schema.name)[list(schema.columns)], schema)


class ExportedRows:
    """True if a file may hold exported rows; `unprotect_cells` removes the export's protection
    against spreadsheet formulas.
    """

    def __init__(self, kind: str, rows: RowFile):
        self._kind = kind
        self._may_be = SCHEMA in rows.columns
        self._is_csv = rows.is_csv

    def __bool__(self) -> bool:
        return self._may_be

    def parse(
        self,
        batch: Iterable[FileRow],
        binding: Binding,
        build: Callable[[dict[str, Any], int, bool], dict[str, Any]],
    ) -> tuple[list[ParsedRow], list[RefusedRow]]:
        """What `build` makes of the bound cells of each row, its line, and whether it was exported;
        and the rows that it rejects, with the reason.
        """
        parsed: list[ParsedRow] = []
        refusals: list[RefusedRow] = []
        for row in batch:
            try:
                cells, is_own = self.unprotect_cells(row)
                record = build(binding.select_cells(cells), row.line, is_own)
                parsed.append((row, record, is_own))
            except RowRejected as cause:
                refusals.append((row, str(cause)))
        return parsed, refusals

    def unprotect_cells(self, row: FileRow) -> tuple[Mapping[str, Any], bool]:
        """The cells, and whether the row was exported. Raises RowRejected for a row that cannot be
        read, and for another kind or version.
        """
        if row.fault is not None:
            raise RowRejected(row.fault)
        cells = row.cells
        schema = cells.get(SCHEMA)
        try:
            if not is_exported(schema):
                return cells, False
        except FrameError as cause:
            raise RowRejected(str(cause)) from cause
        kind = str(schema).rpartition("/")[2]
        if kind not in (self._kind, "tuple"):  # a tuple row holds a vote and its comparison
            raise RowRejected(
                f"the row is an exported {kind}, not a {self._kind}. Write each kind into its own "
                "file"
            )
        return {
            name: unprotect_cell(value) for name, value in cells.items()
        } if self._is_csv else cells, True
