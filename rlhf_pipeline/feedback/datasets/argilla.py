"""Converts comparisons and votes to Argilla records; `shapes.argilla` reads them.

One record per comparison. Each annotator's counting vote becomes `responses` to the
questions `preference` (our choice), `strength`, `reason` and so on, by `user_id`. The last machine
vote becomes the `suggestion` for `preference`, with its confidence as `score` and its model as
`agent`. Skips and earlier passes are left out.
"""

import json
from typing import Any

import pandas as pd

from rlhf_pipeline.core.frames import EXPORTED_VOTES, FrameSchema, check_frame, json_text, time
from rlhf_pipeline.core.records import AnnotatorKind, Choice
from rlhf_pipeline.feedback.datasets.preference import COMPARISON_ROWS

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
