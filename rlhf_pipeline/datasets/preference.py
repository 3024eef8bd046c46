"""The preference format, version 1: comparisons, votes and tuples as they leave. Knows frames;
knows no file and no storage.

What is said of its columns here is said of its JSON rows in schemas/preference-v1.schema.json.
Every row begins with `schema`: which version it is, and of what. A column more, less or of another
meaning is a new version.
"""

import json
from importlib.resources import files
from typing import Any

import pandas as pd

from rlhf_pipeline.errors import FrameError, UnknownComparison
from rlhf_pipeline.frames import (
    COMPARISONS,
    VOTES_AS_CAST,
    Column,
    FrameSchema,
    check_frame,
    text,
    time,
)
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.counting import drop_machine_votes
from rlhf_pipeline.votes.splits import split_of

FAMILY, VERSION = "preference", 1
TUPLE_CHOICES = (Choice.A.value, Choice.B.value, Choice.TIE.value)


def _row_schema(kind: str, columns: dict[str, Column], key: tuple[str, ...] = ()) -> FrameSchema:
    name = f"{FAMILY}-v{VERSION}/{kind}"
    return FrameSchema(
        name,
        {"schema": text("version of the format, and what the row is", values=(name,)), **columns},
        key,
    )


_COMPARISON = COMPARISONS.columns | {
    "comparison_id": text("the comparison; the same wherever it goes"),
    "prompt_id": text("the prompt; comparisons of one prompt fall into one split"),
    "day": text("UTC day it was made for, or imported"),
}
_VOTE = VOTES_AS_CAST.columns | {
    "voted_at": time(
        "when the annotator judged; missing where nobody wrote it down", nullable=True
    ),
}
_SOURCE = {
    "source": text("data set the comparison comes from, else the project that made it"),
    "source_pair_id": text("its id there"),
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
            for name in ("category", "repeat_of", "split_group", "split", "gold", "flag")
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
        "preferred": text("which side the annotator preferred", values=TUPLE_CHOICES),
        "comparison_id": _COMPARISON["comparison_id"],
        **_SOURCE,
        **{
            name: _VOTE[name] for name in ("annotator_id", "annotator_kind", "strength", "voted_at")
        },
        "split": text("as given, else by hash of the prompt", values=("train", "calib", "test")),
    },
)

KINDS: dict[str, FrameSchema] = {
    "comparison": COMPARISON_ROWS,
    "vote": VOTE_ROWS,
    "tuple": TUPLE_ROWS,
}


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that every row of every export is valid against."""
    path = files("rlhf_pipeline.datasets") / "schemas" / f"{FAMILY}-v{VERSION}.schema.json"
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def is_exported(value: object) -> bool:
    """Whether what stands in a row's `schema` says that it is of this format. Raises FrameError for
    a version unknown here.

    >>> is_exported("preference-v1/vote"), is_exported("argument pairs"), is_exported(None)
    (True, False, False)
    """
    if not isinstance(value, str) or not value.startswith(f"{FAMILY}-v"):
        return False
    known = [schema.name for schema in KINDS.values()]
    if value not in known:
        raise FrameError(
            f"Rows of schema {value!r} are unknown here; known are {', '.join(known)}. Install the "
            "version that wrote them."
        )
    return True


def comparison_rows(comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    """COMPARISONS as they leave `project`: its own get it as their source, and there they have the
    id they have here.
    """
    return _apply_schema(
        _fill_source(check_frame(comparisons, COMPARISONS), project), COMPARISON_ROWS
    )


def vote_rows(votes: pd.DataFrame, *, superseded: bool = False) -> pd.DataFrame:
    """VOTES_AS_CAST as they leave: passes, skips and ties, and those that their annotator withdrew
    only if asked for.
    """
    checked = check_frame(votes, VOTES_AS_CAST)
    kept = checked if superseded else checked[~checked["is_superseded"]]
    return _apply_schema(
        kept.assign(source_pair_id=kept["source_pair_id"].fillna(kept["comparison_id"])), VOTE_ROWS
    )


def tuple_rows(votes: pd.DataFrame, comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    """(prompt, a, b, preferred) of each vote that may teach something: of VOTES_AS_CAST and the
    COMPARISONS they judge.

    Left out are withdrawn votes and earlier passes, skips and `both_bad`, and, as in preference
    pairs, votes of machines, on flagged comparisons and on repeats. Raises UnknownComparison for a
    vote on a comparison that is not handed in.
    """
    cast, judged = (
        check_frame(votes, VOTES_AS_CAST),
        _fill_source(check_frame(comparisons, COMPARISONS), project),
    )
    unknown = cast.loc[~cast["comparison_id"].isin(judged["comparison_id"])]
    if not unknown.empty:
        vote = unknown.iloc[0]
        raise UnknownComparison(
            f"Vote {vote['vote_id']} judges {vote['comparison_id']}, which was not handed in. Hand "
            "in its comparison."
        )
    hashed = judged["split_group"].fillna(judged["prompt_id"]).map(split_of)
    shown = judged.assign(split=judged["split"].fillna(hashed)).rename(
        columns={"completion_a": "a", "completion_b": "b"}
    )
    teaches = shown.loc[
        shown["flag"].isna() & shown["repeat_of"].isna(),
        ["comparison_id", *_SOURCE, "prompt", "a", "b", "split"],
    ]
    kept = drop_machine_votes(cast[cast["is_counting"] & cast["choice"].isin(TUPLE_CHOICES)]).drop(
        columns="source_pair_id"
    )
    joined = kept.merge(teaches, on="comparison_id").sort_values("seq")
    return _apply_schema(joined.rename(columns={"choice": "preferred"}), TUPLE_ROWS)


def _fill_source(comparisons: pd.DataFrame, project: str) -> pd.DataFrame:
    return comparisons.assign(
        source=comparisons["source"].fillna(project),
        source_pair_id=comparisons["source_pair_id"].fillna(comparisons["comparison_id"]),
    )


def _apply_schema(frame: pd.DataFrame, schema: FrameSchema) -> pd.DataFrame:
    return check_frame(frame.assign(schema=schema.name)[list(schema.columns)], schema)
