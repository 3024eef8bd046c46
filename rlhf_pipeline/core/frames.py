"""Defines the columns and dtypes of every DataFrame that crosses a stage, and checks them.

`check_frame` enforces a schema, the IO manager writes it as an Arrow schema, the expectations and
the column tables of the Dagster UI are derived from it. pandas and Arrow are imported inside
functions: the store and its commands start without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.records import (
    PEOPLE_FLAGS,
    REJECTED_FLAG,
    AnnotatorKind,
    Choice,
    Difficulty,
    Verdict,
    content_hash,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Kind = Literal["text", "int", "float", "bool", "time", "json"]

DTYPES: dict[Kind, str] = {
    "text": "str",
    "json": "str",
    "int": "int64",
    "float": "float64",
    "bool": "bool",
    "time": "datetime64[us, UTC]",
}
NULLABLE_DTYPES: dict[Kind, str] = DTYPES | {"int": "Int64", "bool": "boolean"}


@dataclass(frozen=True)
class Column:
    """One column: kind of value, meaning, whether values may be missing, allowed values or
    range.
    """

    kind: Kind
    description: str
    nullable: bool = False
    # may be absent from an input frame; all its values are then missing
    optional: bool = False
    values: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None

    @property
    def dtype(self) -> str:
        return (NULLABLE_DTYPES if self.nullable else DTYPES)[self.kind]


@dataclass(frozen=True)
class FrameSchema:
    """Named columns in order; the columns of `key` identify a row."""

    name: str
    columns: dict[str, Column]
    key: tuple[str, ...] = field(default=())

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        types: dict[Kind, pa.DataType] = {
            "text": pa.string(),
            "json": pa.string(),
            "int": pa.int64(),
            "float": pa.float64(),
            "bool": pa.bool_(),
            "time": pa.timestamp("us", tz="UTC"),
        }
        return pa.schema(
            [pa.field(name, types[c.kind], nullable=c.nullable) for name, c in self.columns.items()]
        )

    def empty_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({name: pd.Series(dtype=c.dtype) for name, c in self.columns.items()})


def text(description: str, **more: Any) -> Column:
    return Column("text", description, **more)


def number(description: str, **more: Any) -> Column:
    return Column("float", description, **more)


def integer(description: str, **more: Any) -> Column:
    return Column("int", description, **more)


def flag(description: str, **more: Any) -> Column:
    return Column("bool", description, **more)


def time(description: str, **more: Any) -> Column:
    return Column("time", description, **more)


def json_text(description: str, **more: Any) -> Column:
    return Column("json", description, **more)


IDENTICAL = "identical"  # flag of a comparison of equal texts, which is a tie
FLAGS = (IDENTICAL, "repeated", REJECTED_FLAG, *PEOPLE_FLAGS)
DAY = text("UTC day of the partition, YYYY-MM-DD")
PROBABILITY = {"low": 0.0, "high": 1.0}

PROMPTS = FrameSchema(
    "prompts",
    {
        "day": DAY,
        "prompt_id": text("content id of text and reference"),
        "text": text("text of the prompt"),
        "category": text("kind of task: one of those shipped, or the project's own"),
        "difficulty": text("intended difficulty", values=tuple(Difficulty)),
        "source": text("generator that made it: templates, dataset, freeform"),
        "template_id": text("template it was filled from", nullable=True),
        "variables": json_text("the template's variables as drawn"),
        "reference": text("the checkable answer, if there is one", nullable=True),
        "seed": integer("seed of the generating run"),
    },
    key=("day", "prompt_id"),
)

COMPLETIONS = FrameSchema(
    "completions",
    {
        "day": DAY,
        "completion_id": text(
            "content id of prompt, model version, parameters, sample index and text"
        ),
        "prompt_id": text("the prompt it completes"),
        "text": text("the completion"),
        "backend": text("backend that made it"),
        "model_version": text("policy, as name@version or the provider's name"),
        "temperature": number("sampling temperature", low=0.0),
        "top_p": number("nucleus mass", **PROBABILITY),
        "sample_index": integer("0 to k-1 within the prompt", low=0),
        "seed": integer("seed of this sample"),
        "n_prompt_tokens": integer("tokens of the prompt", low=0),
        "n_tokens": integer("tokens generated", low=0),
        "latency_ms": number("wall time of the call or its share of a batch", low=0.0),
        "finish_reason": text("stop, length, content_filter or error"),
        "error": text("why the completion has no text", nullable=True),
    },
    key=("completion_id",),
)

# Columns of imported comparisons; missing for the pipeline's own.
IMPORTED = {
    "source": text(
        "data set it was imported from; missing for this pipeline's own",
        nullable=True,
        optional=True,
    ),
    "source_pair_id": text("its id there", nullable=True, optional=True),
    "split_group": text(
        "group that stays in one split, as imported; by default the prompt",
        nullable=True,
        optional=True,
    ),
    "split": text(
        "split as imported; by default by hash",
        nullable=True,
        optional=True,
        values=("train", "calib", "test"),
    ),
    "gold": text("known correct choice", nullable=True, optional=True, values=("a", "b", "tie")),
    "flag": text(
        "why it gives no training pair: identical completions, or the same two completions as "
        "another comparison, as imported; pii, identity or broken, as a person flagged it; "
        "rejected, as the correction that it came from",
        nullable=True,
        optional=True,
        values=FLAGS,
    ),
    "tags": json_text(
        "object of the other columns that an import kept", nullable=True, optional=True
    ),
}

COMPARISONS = FrameSchema(
    "comparisons",
    {
        "day": DAY,
        "comparison_id": text("content id of day, prompt, side a, side b and pass"),
        "prompt_id": text("the prompt"),
        "prompt": text("text of the prompt"),
        "completion_a_id": text("completion shown as a"),
        "completion_b_id": text("completion shown as b"),
        "completion_a": text("text of side a"),
        "completion_b": text("text of side b"),
        "model_version_a": text("policy of side a"),
        "model_version_b": text("policy of side b"),
        "category": text("category of the prompt"),
        "repeat_of": text("the comparison this one repeats with sides swapped", nullable=True),
        "position": integer("seeded order within the day", low=0),
        "seed": integer("seed of order and side"),
        **IMPORTED,
    },
    key=("comparison_id",),
)

VOTES = FrameSchema(
    "votes",
    {
        "day": DAY,
        "seq": integer("commit order in the store", low=1),
        "vote_id": text("id of the vote"),
        "comparison_id": text("the comparison that was judged"),
        "prompt_id": text("its prompt"),
        "annotator_id": text("pseudonym of the annotator"),
        "annotator_kind": text("human, simulated or machine", values=tuple(AnnotatorKind)),
        "choice": text("a, b, tie, both_bad or skip", values=tuple(Choice)),
        "strength": integer(
            "1 slight to 4 strong, with choice a or b only", nullable=True, low=1, high=4
        ),
        "repeat_of": text("the comparison this one repeats", nullable=True),
        "voted_at": time(
            "when the annotator judged; missing if an imported vote has no time", nullable=True
        ),
        "received_at": time("when the store committed it"),
        "is_swapped": flag(
            "completion b was shown on the left; missing if no card was dealt",
            nullable=True,
            optional=True,
        ),
        "pass_no": integer(
            "1 for the annotator's first judgement of the comparison, 2 for the next; missing in "
            "frames not read from the store",
            nullable=True,
            optional=True,
            low=1,
        ),
        "revision_no": integer(
            "0 for the first vote of the pass, plus 1 for each superseding vote",
            nullable=True,
            optional=True,
            low=0,
        ),
        "supersedes": text("the vote it replaces", nullable=True, optional=True),
        "duration_s": number("seconds the annotator took", nullable=True, optional=True, low=0.0),
        "stated_confidence": number(
            "the annotator's stated confidence, 0 to 1", nullable=True, optional=True, **PROBABILITY
        ),
        "origin": text(
            "page, api, cli, import, simulation or pipeline", nullable=True, optional=True
        ),
        "guideline_version": integer(
            "version of the guidelines shown to the annotator", nullable=True, optional=True
        ),
        "is_blind": flag(
            "the annotator could not read other people's votes; missing if unknown",
            nullable=True,
            optional=True,
        ),
        "dimensions": json_text(
            "JSON object: dimension of the rubric -> better side (a, b or tie)",
            nullable=True,
            optional=True,
        ),
        "highlights": json_text(
            "JSON list of passages that the annotator marked", nullable=True, optional=True
        ),
    },
    key=("vote_id",),
)

EXPORTED_FIRST = (
    "day",
    "seq",
    "vote_id",
    "comparison_id",
    "annotator_id",
    "annotator_kind",
    "choice",
    "strength",
    "voted_at",
    "received_at",
)

EXPORTED_VOTES = FrameSchema(
    "exported_votes",
    {
        **{name: VOTES.columns[name] for name in EXPORTED_FIRST},
        "source_pair_id": text("id of an imported comparison at its source", nullable=True),
        "reason": text("reason in the annotator's words", nullable=True),
        "stated_confidence": number(
            "the annotator's stated confidence, 0 to 1", nullable=True, **PROBABILITY
        ),
        "duration_s": number("seconds the annotator took", nullable=True, low=0.0),
        "task_id": text("groups votes submitted together", nullable=True),
        "origin": text("page, api, cli, import, simulation or pipeline"),
        "is_blind": flag(
            "the annotator could not read other people's votes; missing if unknown", nullable=True
        ),
        "dimensions": VOTES.columns["dimensions"],
        "highlights": VOTES.columns["highlights"],
        "is_superseded": flag("a later vote of the annotator supersedes it"),
        "is_counting": flag("the annotator's counting vote on this comparison"),
    },
    key=("vote_id",),
)

JUDGEMENTS = FrameSchema(
    "judgements",
    {
        **{name: VOTES.columns[name] for name in ("seq", "comparison_id", "prompt_id")},
        "choice": text("a, b, tie or both_bad", values=tuple(Choice)[:-1]),
        "strength": VOTES.columns["strength"],
    },
    key=("seq",),
)

SOFT_LABELS = FrameSchema(
    "soft_labels",
    {
        "comparison_id": text("the comparison that was judged"),
        "prompt_id": text("its prompt"),
        "utility": number("expected utility of a minus b; the prior has standard deviation 1"),
        "sd": number("standard deviation of that difference", low=0.0),
        "p_a": number(
            "probability that a typical annotator without position bias prefers a in a forced "
            "choice",
            **PROBABILITY,
        ),
        "p_low": number("lower end of the interval of p_a", **PROBABILITY),
        "p_high": number("upper end of the interval of p_a", **PROBABILITY),
        "n_votes": integer("votes on the comparison, including ties", low=1),
        "max_seq": integer(
            "highest vote seq used by the fit, the same in every row; training up to a seq "
            "refuses labels above it",
            low=1,
        ),
    },
    key=("comparison_id",),
)

PREFERENCE_PAIRS = FrameSchema(
    "preference_pairs",
    {
        "day": DAY,
        "comparison_id": text("the comparison it came from"),
        "prompt_id": text("its prompt; by default also its split group"),
        "prompt": text("text of the prompt"),
        "chosen": text("completion preferred by the majority"),
        "rejected": text("the other completion"),
        "margin": number("mean signed strength of the majority, 0 to 1", **PROBABILITY),
        "agreement": number(
            "share of non-tie votes on the majority's side, 0.5 to 1", **PROBABILITY
        ),
        "n_votes": integer("votes for a or b; 0 if all were ties and ties are kept", low=0),
        "chosen_side": text("side of the comparison that was chosen", values=("a", "b")),
        "annotator_kind": text("kind of the annotators; `mixed` if several kinds voted"),
        "category": text("category of the prompt"),
        "split": text("by prompt group, stable across runs", values=("train", "calib", "test")),
        "max_seq": integer(
            "highest vote seq on the comparison, including ties and skips",
            low=1,
        ),
        "n_ties": integer(
            "votes for neither side; missing if they were not counted",
            nullable=True,
            optional=True,
            low=0,
        ),
        "soft_label": number(
            "P(chosen preferred) by the annotator model; missing without a fitted model",
            nullable=True,
            optional=True,
            **PROBABILITY,
        ),
        "label_seq": integer(
            "highest vote seq used by the soft label; missing without a label",
            nullable=True,
            optional=True,
            low=1,
        ),
        "dimension_votes": json_text(
            "JSON object: dimension of the rubric -> [votes for the chosen, votes for the rejected "
            "completion] in it, ties left out; missing where no vote judges a dimension",
            nullable=True,
            optional=True,
        ),
    },
    key=("comparison_id",),
)

PREDICTIONS = FrameSchema(
    "predictions",
    {
        "day": DAY,
        "comparison_id": text("the predicted comparison"),
        "reward_model": text("name@version"),
        "calibrator": text("calibrator version of that reward model"),
        "data_hash": text("hash of the pairs the reward model was fitted on"),
        "features_hash": text("hash of the texts as scored"),
        "score_a": number("reward of side a"),
        "score_b": number("reward of side b"),
        "p_raw": number("P(a preferred) by the reward model", **PROBABILITY),
        "p_calibrated": number("P(a preferred) after calibration", **PROBABILITY),
        "predicted_at": time("when it was written: before any vote, except in a replay"),
        "is_replayed": flag(
            "written after the votes, by a model that was not trained on them",
            nullable=True,
            optional=True,
        ),
    },
    key=("comparison_id", "reward_model"),
)

REFLECTIONS = FrameSchema(
    "reflection_log",
    {
        **PREDICTIONS.columns,
        "seq": integer("seq of the vote; missing before the first vote", nullable=True),
        "vote_id": text("the vote", nullable=True),
        "annotator_id": text("pseudonym of the annotator", nullable=True),
        "annotator_kind": text("kind of annotator", nullable=True),
        "choice": text("the vote's choice", nullable=True),
        "strength": integer("the vote's strength", nullable=True),
        "voted_at": time("when the annotator judged", nullable=True),
        "is_error": flag(
            "prediction and vote disagree; missing for ties, undated votes and unvoted rows",
            nullable=True,
        ),
    },
    key=("comparison_id", "reward_model", "vote_id"),
)

DRIFT_REPORTS = FrameSchema(
    "drift_report",
    {
        "day": DAY,
        "space": text(
            "errors, calibration, overall; of the data: prompt_text, completion_text, "
            "prompt_length, completion_length, embeddings, scores, confidence, choices, strengths, "
            "annotators, prompt_mix"
        ),
        "detector": text("detector or test"),
        "model_version": text("reward model of the stream; `none` before the first"),
        "verdict": text("insufficient, stable, warning or drift", values=tuple(Verdict)),
        "statistic": number("value of the detector's or test's statistic", nullable=True),
        "threshold": number("threshold of the statistic", nullable=True),
        "p_value": number("p-value, if the test has one", nullable=True),
        "n_reference": integer("rows of the reference window", low=0),
        "n_current": integer("rows of the current window", low=0),
        "evidence": json_text("JSON object with the figures behind the verdict"),
    },
    key=("day", "space", "detector"),
)

RETRAINING_SET = FrameSchema(
    "retraining_set",
    {
        "comparison_id": text("the comparison it came from"),
        "prompt_id": text("its prompt"),
        "prompt": text("text of the prompt"),
        "chosen": text("preferred completion"),
        "rejected": text("the other completion"),
        "margin": number("mean signed strength, 0 to 1", **PROBABILITY),
        "weight": number("sampling weight: lower for votes before a detected change", low=0.0),
        "origin": text(
            "who says which completion is better: people, the refitted reward model, or a curated "
            "data set; a canary is added to a training and is in no stored set",
            values=("vote", "relabelled", "hard_negative", "dataset", "canary"),
        ),
        "information": number("ranking value of the row"),
        "difficulty": number(
            "2 (1 - p) with the reward model's p of the chosen completion: 0 where it is certain, "
            "1 where it is not or prefers the other",
            **PROBABILITY,
        ),
        "reason": text("why the row was selected"),
        "split": text(
            "split of the pair; never an evaluation split", values=("train", "calib", "test")
        ),
        "day": DAY,
        "dataset": text(
            "name@version of the curated data set that gives the row; missing without one",
            nullable=True,
            optional=True,
        ),
    },
    key=("comparison_id",),
)

DATASET_ROWS = FrameSchema(
    "dataset_rows",
    {
        "row_id": text("names the row within its data set, by its first source"),
        "sources": json_text(
            "JSON list of what it was made from: comparison:ID, feedback:ID, pair:ID@REVISION"
        ),
        "prompt_id": text("its prompt"),
        "prompt": text("text of the prompt, or messages and documents as a conversation"),
        "completion": text("the preferred completion, the one to imitate, or the one judged"),
        "rejected": text("the other completion of a preference row", nullable=True),
        "label": flag("whether the completion of an unpaired row is desirable", nullable=True),
        "strength": number("strength of the preference", nullable=True, **PROBABILITY),
        "agreement": number(
            "share of votes on the preferred side; missing without votes",
            nullable=True,
            **PROBABILITY,
        ),
        "category": text("category of the prompt", nullable=True),
        "day": DAY,
    },
    key=("row_id",),
)

SCHEMAS: dict[str, FrameSchema] = {
    s.name: s
    for s in (
        PROMPTS,
        COMPLETIONS,
        COMPARISONS,
        VOTES,
        PREFERENCE_PAIRS,
        PREDICTIONS,
        REFLECTIONS,
        DRIFT_REPORTS,
        RETRAINING_SET,
    )
}
# the stage is named after the fitted model, the frame after its content
SCHEMAS["annotator_model"] = SOFT_LABELS


def check_frame(frame: pd.DataFrame, schema: FrameSchema) -> pd.DataFrame:
    """A new frame with the schema's columns, in order and with their dtypes.

    Raises FrameError, which names column, first bad row and cure, for a missing or unknown column,
    a missing value in a required column, a value that does not convert, is not allowed or is out of
    range, invalid JSON, or a duplicate key. Does not edit `frame`; drops its index.
    """
    import pandas as pd

    absent = [c for c in schema.columns if c not in frame.columns]
    missing = [c for c in absent if not schema.columns[c].optional]
    unknown = [c for c in frame.columns if c not in schema.columns]
    if missing or unknown:
        raise FrameError(
            f"{schema.name}: missing columns {missing}, unknown columns {unknown}. Expected: "
            f"{list(schema.columns)}."
        )
    rows = frame.reset_index(drop=True)
    checked = pd.DataFrame(
        {
            name: pd.Series([None] * len(rows), dtype=c.dtype)
            if name in absent
            else _check_column(rows[name], name, schema)
            for name, c in schema.columns.items()
        }
    )
    if schema.key and not checked.empty:
        duplicate = checked.duplicated(list(schema.key))
        if duplicate.any():
            row = int(duplicate.to_numpy().argmax())
            raise FrameError(
                f"{schema.name}: {int(duplicate.sum())} duplicate keys; row {row} repeats "
                f"{dict(checked.loc[row, list(schema.key)])}. Drop duplicates of "
                f"{list(schema.key)} first."
            )
    return checked


def frame_hash(frame: pd.DataFrame) -> str:
    """Content hash of a frame: rows, order and columns, not the index."""
    import pandas as pd

    rows = pd.util.hash_pandas_object(frame, index=False).tolist()
    return content_hash(list(frame.columns), rows)


def concat(frames: Iterable[pd.DataFrame], schema: FrameSchema) -> pd.DataFrame:
    """All rows of `frames`, checked against `schema`; its empty frame if there are none."""
    import pandas as pd

    parts = [f for f in frames if not f.empty]
    return (
        check_frame(pd.concat(parts, ignore_index=True), schema) if parts else schema.empty_frame()
    )


def _convert(series: pd.Series, column: Column) -> pd.Series:
    import pandas as pd

    if column.kind in ("text", "json"):
        return series.astype(object).where(series.notna(), None).astype(column.dtype)
    if column.kind == "time":
        return pd.to_datetime(series, utc=True, format="ISO8601").astype(column.dtype)
    return series.astype(column.dtype)


def _check_column(series: pd.Series, name: str, schema: FrameSchema) -> pd.Series:
    column = schema.columns[name]

    def refuse(bad: pd.Series, what: str, cure: str) -> None:
        if bad.any():
            row = int(bad.to_numpy().argmax())
            value_text = repr(series.iloc[row])[:80]
            raise FrameError(
                f"{schema.name}.{name}: {what} in {int(bad.sum())} rows, first row {row} "
                f"({value_text}). {cure}"
            )

    if not column.nullable:
        refuse(series.isna(), "missing value", "The column may not be empty.")
    if column.kind == "int" and series.dtype.kind == "f":
        # the cast would truncate it
        refuse(series.notna() & (series % 1 != 0), "not a whole number", column.description)
    try:
        typed = series if str(series.dtype) == column.dtype else _convert(series, column)
    except (ValueError, TypeError, OverflowError) as cause:
        raise FrameError(
            f"{schema.name}.{name}: does not convert to {column.dtype} ({cause}). "
            f"{column.description}."
        ) from cause
    if column.values is not None:
        refuse(
            typed.notna() & ~typed.isin(column.values),
            "value not allowed",
            f"Allowed: {', '.join(column.values)}.",
        )
    if column.kind == "float":
        refuse(
            typed.notna() & typed.isin([float("inf"), float("-inf")]),
            "infinite value",
            "Numbers must be finite.",
        )
    if column.low is not None:
        refuse((typed < column.low).fillna(False), f"value below {column.low}", column.description)
    if column.high is not None:
        refuse(
            (typed > column.high).fillna(False), f"value above {column.high}", column.description
        )
    if column.kind == "json":
        is_broken = typed.dropna().map(_is_broken_json).astype(bool)
        refuse(
            is_broken.reindex(typed.index, fill_value=False),
            "invalid JSON",
            "Write it with json.dumps.",
        )
    return typed


def _is_broken_json(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        json.loads(value)
    except ValueError:
        return True
    return False
