"""Label Studio's exports of pairwise comparisons: JSON, JSON-MIN and CSV."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeGuard

from rlhf_pipeline.core.documents import parse_json
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.cells import RowRejected
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.shapes.base import PREFERENCES, Cells, FileShape

# What a result holds under `value`, by its type
VALUES = ("selected", "choices", "rating", "text", "number")


class LabelStudio(FileShape):
    """One row for each annotation; a task without one is a pair without a vote."""

    name: ClassVar[str] = "label-studio"
    title: ClassVar[str] = "Label Studio: annotations of pairs"
    names: ClassVar[Names] = PREFERENCES | {
        "choice": ("comparison", "preference", "label", "preferred"),
        "source_pair_id": ("id",),
        "duration_s": ("lead_time",),
        "voted_at": ("updated_at", "created_at"),
    }
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",), ("completion_a",), ("choice",))
    metadata: ClassVar[tuple[str, ...]] = ("annotation_id", "created_at", "agreement")
    words: ClassVar[Mapping[str, Choice]] = {"left": Choice.A, "right": Choice.B}

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"annotations", "data"} <= {*columns} or {"annotation_id", "lead_time"} <= {*columns}

    @classmethod
    def flatten(cls, cells: Cells) -> Iterator[Cells]:
        """The rows that Label Studio's own JSON-MIN has of a task."""
        data, annotations = cells.get("data"), cells.get("annotations")
        if annotations is None and data is None:
            yield cells
            return
        if not isinstance(data, Mapping) or not _is_list_of_objects(annotations):
            raise RowRejected("a task without `data` or a list `annotations`. Export it as JSON")
        rows = [row for annotation in annotations for row in _read_annotation(annotation)]
        for row in rows or [{}]:
            yield {**data, "id": cells.get("id"), **row}

    def judge(self, bound: Cells) -> list[dict[str, Any]]:
        """The vote of a row; a CSV file may hold the value of a result as JSON."""
        choice = bound["choice"]
        if isinstance(choice, str) and choice.lstrip().startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                bound = {**bound, "choice": _find_answer(parse_json(choice))}
        return super().judge(bound)


def _find_answer(value: Any) -> Any:
    """The answer in the value of a result, or in a list with one."""
    if isinstance(value, list) and len(value) == 1:
        return _find_answer(value[0])
    if isinstance(value, Mapping):
        return _find_answer(next((value[name] for name in VALUES if name in value), None))
    return value


def _is_list_of_objects(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _read_annotation(annotation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The answers of an annotation that was not skipped."""
    if annotation.get("was_cancelled"):
        return
    results = annotation.get("result") or []
    if not _is_list_of_objects(results):
        raise RowRejected("the result of an annotation is not a list of objects. Export it as JSON")
    user = annotation.get("completed_by")
    answers: dict[str, Any] = {
        "annotation_id": annotation.get("id"),
        "annotator": user.get("email", user.get("id")) if isinstance(user, Mapping) else user,
        **{name: annotation.get(name) for name in ("created_at", "updated_at", "lead_time")},
    }
    for result in results:
        value = result.get("value")
        if not isinstance(value, Mapping):
            raise RowRejected("the value of an annotation's result is not an object")
        answer = _find_answer(value)
        is_pairwise = result.get("type") == "pairwise"
        answers["comparison" if is_pairwise else str(result.get("from_name"))] = answer
    yield answers
