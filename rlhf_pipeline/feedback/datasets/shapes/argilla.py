"""Argilla's records as `records.to_json` or its API writes them, or flat as its data sets are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.records import AnnotatorKind
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.cells import RowRejected
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.preference import VOTE_ROWS, is_exported
from rlhf_pipeline.feedback.datasets.shapes.base import PREFERENCES, Cells, FileShape, RowReading

PREFERENCE = "preference"
RESPONSES, USERS, STATUS = ".responses", ".responses.users", ".responses.status"
SUBMITTED = "submitted"
LEFT_OUT = "response with status {!r}: no vote"
NOTES = "left out"  # cell of a flat row


class ArgillaRecords(FileShape):
    """Each user's submitted answers become a vote, a suggestion a machine vote. The question
    `preference` is the choice; its values are our words or names of fields.
    """

    name: ClassVar[str] = "argilla"
    title: ClassVar[str] = "Argilla: records with responses of users"
    names: ClassVar[Names] = {
        **PREFERENCES,
        **mapping.OWN_COMPARISONS,
        **{name: () for name in mapping.OWN_VOTES},
        "choice": (PREFERENCE, "label", "preferred"),
        "prompt": ("instruction", "question", "input"),
        "input": (),
    }
    metadata: ClassVar[tuple[str, ...]] = ("status", "_server_id", "suggested_at", "vectors")
    hidden: ClassVar[tuple[str, ...]] = (NOTES,)

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        is_nested = "fields" in columns and {"responses", "suggestions"} & {*columns}
        return bool(is_nested) or any(name.endswith(STATUS) for name in columns)

    @classmethod
    def flatten(cls, cells: Cells) -> Iterator[Cells]:
        record = cells if "fields" in cells else _nest(cells)
        if isinstance(record.get("responses"), list):
            record = {**record, "responses": _group_by_question(record["responses"])}
        _check(record)
        metadata = dict(record.get("metadata") or {})
        suggested_at = metadata.pop("suggested_at", None)
        about = {"source_pair_id": record.get("id"), **metadata, **record["fields"]}
        is_own = _is_own(metadata)
        if is_own:
            about["comparison_id"] = record.get("id")
        by_user, left_out = _read_responses(record)
        rows: list[dict[str, Any]] = [
            {"annotator_id": user, **values} for user, values in by_user.items()
        ]
        suggestion = (record.get("suggestions") or {}).get(PREFERENCE)
        if suggestion is not None:
            rows.append(
                {
                    PREFERENCE: suggestion.get("value"),
                    "stated_confidence": suggestion.get("score"),
                    "annotator_id": suggestion.get("agent") or "suggestion",
                    "annotator_kind": AnnotatorKind.MACHINE.value,
                }
                | ({"voted_at": suggested_at} if is_own else {})
            )
        for i, row in enumerate(rows or [{}]):
            yield about | row | ({NOTES: left_out} if left_out and i == 0 else {})

    def read(self, cells: Cells) -> Iterator[RowReading]:
        for reading in super().read(cells):
            votes = reading.votes if cells.get("annotator_id") else []
            pair = reading.pair
            if pair is not None and _is_own(cells):
                pair[mapping.SCHEMA] = cells[mapping.SCHEMA]
                own = {
                    mapping.SCHEMA: VOTE_ROWS.name,
                    "comparison_id": cells["comparison_id"],
                    "is_superseded": False,
                }
                votes = [vote | own for vote in votes]
            yield reading._replace(votes=votes, notes=[*reading.notes, *cells.get(NOTES, ())])


def _read_responses(record: Cells) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The answers of each user by question, and notes on the responses that are no votes."""
    by_user: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for question, answers in (record.get("responses") or {}).items():
        for answer in answers:
            user, status = str(answer.get("user_id")), answer.get("status") or SUBMITTED
            if status != SUBMITTED:
                left_out[user] = LEFT_OUT.format(status)
            else:
                by_user.setdefault(user, {})[question] = _read_value(answer.get("value"))
    return by_user, [note for user, note in left_out.items() if user not in by_user]


def _group_by_question(responses: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    """The answers by question, of the list of users' responses that Argilla's API returns."""
    by_question: dict[str, list[dict[str, Any]]] = {}
    for response in responses:
        values = response.get("values") or {} if isinstance(response, dict) else None
        if not isinstance(values, dict):
            raise RowRejected(
                "not a record: a response is no object with values, user_id and status"
            )
        about = {name: response.get(name) for name in ("user_id", "status")}
        for question, answer in (values or {PREFERENCE: None}).items():
            value = answer.get("value") if isinstance(answer, dict) else answer
            by_question.setdefault(question, []).append({"value": value, **about})
    return by_question


def _read_value(value: Any) -> Any:
    """The answer; of a ranking the name of its first field, or tie where two share that place."""
    if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
        best = min(v.get("rank", 0) for v in value)
        first = [v.get("value") for v in value if v.get("rank", 0) == best]
        return first[0] if len(first) == 1 else "tie"
    return value


def _nest(cells: Cells) -> dict[str, Any]:
    """The record of a flat row, whose columns are `question.responses.users` and the like."""
    questions = [name.removesuffix(STATUS) for name in cells if name.endswith(STATUS)]
    responses = {}
    for question in questions:
        parts = [cells.get(question + suffix) or [] for suffix in (RESPONSES, USERS, STATUS)]
        if len({len(part) for part in parts}) != 1:
            raise RowRejected(f"{question}: responses, users and status are not equally many")
        responses[question] = [
            {"value": value, "user_id": user, "status": status}
            for value, user, status in zip(*parts, strict=True)
        ]
    suggestions = {
        question: {
            "value": cells[f"{question}.suggestion"],
            "score": cells.get(f"{question}.suggestion.score"),
            "agent": cells.get(f"{question}.suggestion.agent"),
        }
        for question in questions
        if cells.get(f"{question}.suggestion") is not None
    }
    plain = {name: value for name, value in cells.items() if "." not in name and name != "id"}
    return {
        "id": cells.get("id"),
        "fields": plain,
        "responses": responses,
        "suggestions": suggestions,
    }


def _is_own(metadata: Cells) -> bool:
    try:
        return is_exported(metadata.get(mapping.SCHEMA))
    except FrameError as cause:
        raise RowRejected(str(cause)) from cause


def _check(record: Cells) -> None:
    """Raises RowRejected for a row that is not a valid record."""
    if not isinstance(record.get("fields"), dict):
        raise RowRejected(
            "not a record: it has no object `fields`. Export it from Argilla with records.to_json"
        )
    for name in ("metadata", "responses", "suggestions"):
        if not isinstance(record.get(name) or {}, dict):
            raise RowRejected(
                f"not a record: {name} is a {type(record[name]).__name__}, not an object"
            )
    for question, answers in (record.get("responses") or {}).items():
        if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
            raise RowRejected(
                f"not a record: the responses to {question!r} are not a list of objects with "
                "value and user_id"
            )
    if not all(isinstance(entry, dict) for entry in (record.get("suggestions") or {}).values()):
        raise RowRejected("not a record: a suggestion is no object with value, score and agent")
