"""What is known of each annotator, every figure with an interval. Knows frames of votes; knows no
store and no reward model.

    reliability, position_bias   the joint model's
    self_consistency             the same two completions again, the same judgement
    median_seconds               of the votes that say how long they took
    too_fast                     share of them given faster than anybody reads both completions
    same_as_before               share of votes that say what the one before said, as shown: left,
                                 right or neither (straight-lining); of two that are known to have
                                 been shown with which side left; ties alone would say it of
                                 everybody
    gold_accuracy                first judgements of comparisons whose right choice is known
    mean_confidence, brier       stated confidence against the side that most of the others took,
                                 ties left out
    confidence_gap               mean_confidence less the share of those sides that were right;
                                 above 0 is too sure

What nobody measured is missing. Ends of shares are Wilson's (1927), which stay wide where little
was seen; that of a Brier score is the same, which is too wide: of values from 0 to 1 none vary more
than a share. Ends of a median are order statistics, so of fewer votes than such ends need (6 at a
level of 95 %) no median is given. The votes of one annotator count as independent.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.frames import (
    COMPARISONS,
    FrameSchema,
    check_frame,
    integer,
    number,
    text,
)
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.agreement import repeat_judgements
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.joint_model import JointModel
from rlhf_pipeline.votes.statistics import (
    Figures,
    GroupStatistics,
    interval_columns,
    measure_columns,
)

Ints = npt.NDArray[np.int64]

UNIT = {"low": 0.0, "high": 1.0}
TIES = (Choice.TIE, Choice.BOTH_BAD)


ANNOTATOR_FIGURES = FrameSchema(
    "annotator_figures",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("judgements, skips left out", low=1),
        **measure_columns(
            "reliability",
            "chance to take the better side of a typical comparison, if taking one",
            **UNIT,
        ),
        **measure_columns(
            "position_bias",
            "chance to take the left of two equally good completions, less one half",
            low=-0.5,
            high=0.5,
        ),
        "n_again": integer("judgements of two completions that were judged before", low=0),
        **measure_columns(
            "self_consistency", "share of them that are the same as the first", **UNIT
        ),
        "n_timed": integer("votes that say how long they took", low=0),
        **measure_columns("median_seconds", "median of these times", low=0.0),
        "n_read": integer("of them those whose completions are known", low=0),
        **measure_columns(
            "too_fast", "share of them faster than anybody reads both completions", **UNIT
        ),
        "n_followed": integer("votes with one before, sides of both known", low=0),
        **measure_columns(
            "same_as_before",
            "share of them that say the same, as shown: left, right or neither",
            **UNIT,
        ),
        "n_gold": integer("first judgements of comparisons with a known right choice", low=0),
        **measure_columns("gold_accuracy", "share of them that are right", **UNIT),
        "n_sure": integer(
            "votes for a side that say how sure they are, and on which the others lean to one",
            low=0,
        ),
        "mean_confidence": number("mean of what these say", nullable=True, **UNIT),
        **measure_columns(
            "confidence_gap",
            "mean confidence less the share that took the others' side",
            low=-1.0,
            high=1.0,
        ),
        **measure_columns("brier", "mean squared distance of confidence from being right", **UNIT),
    },
    key=("annotator_id",),
)


class FiguresParams(BaseModel):
    """What counts as too fast, and how sure intervals are."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    fastest_reading: float = Field(
        default=100.0,
        gt=0,
        description="Characters of the two completions a second above which nobody read them; 100 "
        "is 1,000 words a minute",
    )
    level: float = Field(
        default=0.95,
        gt=0.5,
        lt=1,
        description="Level of the intervals that are not the joint model's",
    )


def annotator_figures(
    votes: pd.DataFrame,
    model: JointModel,
    *,
    comparisons: pd.DataFrame | None = None,
    params: FiguresParams | None = None,
) -> pd.DataFrame:
    """ANNOTATOR_FIGURES of a VOTES frame and the joint model of it, the least reliable first.

    `comparisons` bring gold and the length of what was read; without them the figures that need
    them are missing. Raises FrameError.
    """
    params = params or FiguresParams()
    judged = drop_machine_votes(counting(votes))
    comparisons = None if comparisons is None else check_frame(comparisons, COMPARISONS)
    known = model.annotators
    names = known["annotator_id"].to_numpy(dtype=str)
    # who judged flagged ones alone is not known
    judged = judged[(judged["choice"] != Choice.SKIP) & judged["annotator_id"].isin(names)]
    tell = GroupStatistics(len(names), params.level)

    def encode_annotators(who: pd.Series) -> Ints:
        return np.asarray(np.searchsorted(names, who.to_numpy(dtype=str)), dtype=np.int64)

    def share(measure: str, counted: str, what: "pd.Series[bool]") -> Figures:
        return tell.share(
            measure, counted, encode_annotators(judged.loc[what.index, "annotator_id"]), what
        )

    again = repeat_judgements(votes[votes["annotator_id"].isin(names)])
    timed, sure = judged[judged["duration_s"].notna()], compare_with_others(judged)
    figures = {
        "annotator_id": names,
        "n_votes": known["n_votes"].to_numpy(),
        **{
            name: known[name].to_numpy()
            for measure in ("reliability", "position_bias")
            for name in interval_columns(measure)
        },
        **tell.share(
            "self_consistency", "n_again", encode_annotators(again["annotator_id"]), again["same"]
        ),
        **tell.median(
            "median_seconds",
            "n_timed",
            encode_annotators(timed["annotator_id"]),
            timed["duration_s"],
        ),
        **share("too_fast", "n_read", is_too_fast(timed, comparisons, params.fastest_reading)),
        **share("same_as_before", "n_followed", _repeats_side(judged)),
        **share("gold_accuracy", "n_gold", matches_gold(judged, comparisons)),
        **tell.confidence(
            encode_annotators(sure["annotator_id"]), sure["stated_confidence"], sure["is_right"]
        ),
    }
    frame = check_frame(pd.DataFrame(figures), ANNOTATOR_FIGURES)
    return frame.sort_values(["reliability", "annotator_id"], ignore_index=True)


def is_too_fast(
    timed: pd.DataFrame, comparisons: pd.DataFrame | None, fastest: float
) -> "pd.Series[bool]":
    """Of the votes that say how long they took, those whose completions are known: whether nobody
    reads both in that time.
    """
    shown = COMPARISONS.empty_frame() if comparisons is None else comparisons
    length = (shown["completion_a"].str.len() + shown["completion_b"].str.len()).astype("float64")
    characters = (
        timed["comparison_id"]
        .map(dict(zip(shown["comparison_id"], length, strict=True)))
        .astype("float64")
        .dropna()
    )
    return timed.loc[characters.index, "duration_s"] * fastest < characters


def _repeats_side(judged: pd.DataFrame) -> "pd.Series[bool]":
    """In the order of seq, of votes of which it is known which completion stood left."""
    ordered = judged.sort_values(["annotator_id", "seq"])
    shown = displayed_side(ordered)
    before = shown.groupby(ordered["annotator_id"]).shift()
    followed = before.notna() & shown.notna()
    return shown[followed] == before[followed]


def displayed_side(judged: pd.DataFrame) -> pd.Series:
    """What was said, as it was shown: 1 left, -1 right, 0 neither; missing where nobody knows which
    stood left, of ties too.
    """
    side = judged["choice"].map({Choice.A: 1.0, Choice.B: -1.0}).fillna(0.0)
    return side.where(~judged["is_swapped"].fillna(False).astype(bool), -side).where(
        judged["is_swapped"].notna()
    )


def matches_gold(judged: pd.DataFrame, comparisons: pd.DataFrame | None) -> "pd.Series[bool]":
    """Of first judgements of comparisons whose right choice is known: whether it was taken; either
    kind of tie is a tie.
    """
    shown = COMPARISONS.empty_frame() if comparisons is None else comparisons
    known = shown[shown["gold"].notna() & shown["repeat_of"].isna()]
    gold = (
        judged["comparison_id"]
        .map(dict(zip(known["comparison_id"], known["gold"], strict=True)))
        .dropna()
    )
    choice = judged.loc[gold.index, "choice"]
    return choice.where(~choice.isin(TIES), Choice.TIE.value) == gold


def compare_with_others(told: pd.DataFrame, by: str = "comparison_id") -> pd.DataFrame:
    """annotator_id, stated_confidence and is_right of votes for a side whose comparison's other
    votes lean to one; the others are those of the same `by`."""
    sided = told[told["repeat_of"].isna() & told["choice"].isin([Choice.A, Choice.B])]
    sign = (sided["choice"] == Choice.A).astype("int64") * 2 - 1
    others = sign.groupby(sided[by]).transform("sum") - sign
    kept = sided["stated_confidence"].notna() & (others != 0)
    return sided.loc[kept, ["annotator_id", "stated_confidence"]].assign(
        is_right=(others[kept] > 0) == (sign[kept] > 0)
    )
