"""Converts comparisons and votes to and from Argilla records.

Export: one record per comparison. Each annotator's counting vote becomes `responses` to the
questions `preference` (our choice), `strength`, `reason` and so on, by `user_id`. The last machine
vote becomes the `suggestion` for `preference`, with its confidence as `score` and its model as
`agent`. Skips and earlier passes are left out.

Import: a record gives one row for `rlhf import comparisons` (its fields and metadata) and one row
per user and suggestion for `rlhf import votes`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import EXPORTED_VOTES, FrameSchema, check_frame, json_text, time
from rlhf_pipeline.core.records import AnnotatorKind, Choice
from rlhf_pipeline.core.row_files import FileRow, RowFile
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.formats.argilla import ANSWERS
from rlhf_pipeline.feedback.datasets.preference import COMPARISON_ROWS, VOTE_ROWS, is_exported

PREFERENCE = "preference"
# Question -> column of EXPORTED_VOTES, in order of writing.
QUESTIONS = {PREFERENCE: "choice"} | {
    name: name
    for name in (
        "strength",
        "reason",
        "stated_confidence",
        "duration_s",
        "voted_at",
        "task_id",
        "annotator_kind",
    )
}
DEFAULT_ANSWERS = {"annotator_kind": AnnotatorKind.HUMAN.value}

RECORD_ROWS = FrameSchema(
    "argilla",
    {
        **COMPARISON_ROWS.columns,
        "responses": json_text("question -> value of each user"),
        "suggestions": json_text("question -> value of a model"),
        "suggested_at": time("when the model made the suggestion", nullable=True),
    },
    key=("comparison_id",),
)


def record_rows(comparisons: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """RECORD_ROWS of exported comparison rows and the EXPORTED_VOTES on them."""
    cast = check_frame(votes, EXPORTED_VOTES).sort_values("seq")
    judgements = cast[cast["is_counting"] & (cast["choice"] != Choice.SKIP)]
    is_machine = judgements["annotator_kind"] == AnnotatorKind.MACHINE
    responses = {
        str(c): _responses(group) for c, group in judgements[~is_machine].groupby("comparison_id")
    }
    suggested = (
        judgements[is_machine]
        .drop_duplicates("comparison_id", keep="last")
        .set_index("comparison_id")
    )
    suggestions = {
        str(c): {
            PREFERENCE: {
                "value": row["choice"],
                "score": _to_plain_value(row["stated_confidence"]),
                "agent": row["annotator_id"],
            }
        }
        for c, row in suggested.iterrows()
    }
    ids = comparisons["comparison_id"]
    return check_frame(
        comparisons.assign(
            responses=[json.dumps(responses.get(c, {}), ensure_ascii=False) for c in ids],
            suggestions=[json.dumps(suggestions.get(c, {}), ensure_ascii=False) for c in ids],
            suggested_at=suggested["voted_at"].reindex(ids).array,
        ),
        RECORD_ROWS,
    )


def is_argilla(rows: RowFile) -> bool:
    """Whether the rows are Argilla records: they have fields, and responses or suggestions."""
    return "fields" in rows.columns and any(name in rows.columns for name in ANSWERS)


class ArgillaRows:
    """The rows that `flatten` makes of each record of a file; `columns` is the union over all."""

    is_csv = False

    def __init__(
        self, records: RowFile, flatten: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]
    ) -> None:
        self._records = records
        self._flatten = flatten
        self.size = records.size
        # Reads all rows: a question may first be answered in the last record.
        self.columns = list(
            dict.fromkeys(name for row in self if row.fault is None for name in row.cells)
        )

    @property
    def position(self) -> int:
        return self._records.position

    def __iter__(self) -> Iterator[FileRow]:
        for record in self._records:
            fault = record.fault or _find_fault(record.cells)
            if fault is not None:
                yield FileRow(record.line, record.cells, fault)
            else:
                yield from (FileRow(record.line, cells) for cells in self._flatten(record.cells))


def comparison_of(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row: the metadata and fields of a record, and its id as source_pair_id."""
    metadata = {k: v for k, v in (record.get("metadata") or {}).items() if k != "suggested_at"}
    own = {"comparison_id": record.get("id")} if _is_exported(record) else {}
    yield {"source_pair_id": record.get("id")} | metadata | own | record["fields"]


def votes_of(record: Mapping[str, Any], question: str = PREFERENCE) -> Iterator[dict[str, Any]]:
    """One row per user with a response, and one for a model's suggestion; `question` holds the
    choice.
    """
    own = _is_exported(record)
    about: dict[str, Any] = {"source_pair_id": record.get("id")}
    if own:
        about |= {
            "comparison_id": record.get("id"),
            mapping.SCHEMA: VOTE_ROWS.name,
            "is_superseded": False,
        }
    by_user: dict[str, dict[str, Any]] = {}
    for question_name, answers in (record.get("responses") or {}).items():
        for answer in answers:
            by_user.setdefault(str(answer.get("user_id")), {})[question_name] = answer.get("value")
    for user, values in by_user.items():
        yield about | {"annotator_id": user} | values
    suggestion = (record.get("suggestions") or {}).get(question)
    if suggestion is not None:
        when = {"voted_at": (record.get("metadata") or {}).get("suggested_at")} if own else {}
        values = {question: suggestion.get("value"), "stated_confidence": suggestion.get("score")}
        machine = {
            "annotator_id": suggestion.get("agent") or "suggestion",
            "annotator_kind": AnnotatorKind.MACHINE.value,
        }
        yield about | machine | values | when


def _responses(votes: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    answers: dict[str, list[dict[str, Any]]] = {}
    for row in votes.to_dict("records"):
        for question, column in QUESTIONS.items():
            value = _to_plain_value(row[column])
            if value is not None and value != DEFAULT_ANSWERS.get(question):
                answers.setdefault(question, []).append(
                    {"value": value, "user_id": row["annotator_id"]}
                )
    return answers


def _to_plain_value(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, pd.Timestamp):
        return value.tz_convert("UTC").tz_localize(None).isoformat(timespec="microseconds") + "Z"
    return value.item() if hasattr(value, "item") else value


def _is_exported(record: Mapping[str, Any]) -> bool:
    try:
        return is_exported((record.get("metadata") or {}).get(mapping.SCHEMA))
    except FrameError:
        return False  # reading the row's column raises the same error, and rejects the row


def _find_fault(record: Mapping[str, Any]) -> str | None:
    """Why a row is not a valid record, or None."""
    if not isinstance(record.get("fields"), dict):
        return (
            "not a record: it has no object `fields`. Export it from Argilla with records.to_json"
        )
    for name in ("metadata", "responses", "suggestions"):
        if not isinstance(record.get(name) or {}, dict):
            return f"not a record: {name} is a {type(record[name]).__name__}, not an object"
    for question, answers in (record.get("responses") or {}).items():
        if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
            return (
                f"not a record: the responses to {question!r} are not a list of objects with "
                "value and user_id"
            )
    if not all(
        isinstance(suggestion, dict) for suggestion in (record.get("suggestions") or {}).values()
    ):
        return "not a record: a suggestion is not an object with value, score and agent"
    return None
