"""Computes quality figures of each annotator, each with an interval.

    reliability, position_bias   from the joint model
    self_consistency             share of repeated judgements that equal the first
    median_seconds               median duration of the votes that record one
    too_fast                     share of those faster than anyone can read both completions
    same_as_before               share of votes that repeat the displayed side (left, right or
                                 neither) of the previous vote (straight-lining), among votes with
                                 both displayed sides known
    gold_accuracy                share of first judgements of gold comparisons that are correct
    mean_confidence, brier       stated confidence against the majority of the other votes,
                                 without ties
    confidence_gap               mean_confidence minus the share of votes on the majority's side;
                                 above 0 is overconfident

Figures without data are missing. Intervals of shares are Wilson's (1927), which stay wide for small
samples. Brier scores use the same interval, which is conservative: no variable in [0, 1] has a
larger variance than a share. Intervals of medians are order statistics, so a median needs at least
6 votes at a level of 95 %. Votes of one annotator are treated as independent.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import (
    COMPARISONS,
    FrameSchema,
    check_frame,
    integer,
    number,
    text,
)
from rlhf_pipeline.core.records import FASTEST_READING, Choice
from rlhf_pipeline.feedback.votes.agreement import repeat_judgements
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_machine_votes, keep_rows
from rlhf_pipeline.feedback.votes.joint_model import JointModel
from rlhf_pipeline.feedback.votes.statistics import (
    Figures,
    GroupStatistics,
    interval_columns,
    measure_columns,
)

Ints = npt.NDArray[np.int64]

UNIT = {"low": 0.0, "high": 1.0}
TIES = (Choice.TIE, Choice.BOTH_BAD)

PACE_COLUMNS = {
    "n_timed": integer("votes with a duration", low=0),
    **measure_columns("median_seconds", "median duration in seconds", low=0.0),
    "n_read": integer("of these, votes whose completion lengths are known", low=0),
    **measure_columns("too_fast", "share faster than anyone can read both completions", **UNIT),
}
CONFIDENCE_COLUMNS = {
    "n_sure": integer(
        "votes for a side with a stated confidence on comparisons where the other votes have "
        "a majority",
        low=0,
    ),
    "mean_confidence": number("mean stated confidence", nullable=True, **UNIT),
    **measure_columns(
        "confidence_gap",
        "mean confidence minus the share of votes on the majority's side",
        low=-1.0,
        high=1.0,
    ),
    **measure_columns(
        "brier",
        "mean squared distance of stated confidence and agreement with the majority",
        **UNIT,
    ),
}
ANNOTATOR_FIGURES = FrameSchema(
    "annotator_figures",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("votes without skips", low=1),
        **measure_columns(
            "reliability",
            "probability of choosing the better side of a typical comparison, given a choice of a "
            "side",
            **UNIT,
        ),
        **measure_columns(
            "position_bias",
            "probability of choosing the left of two equally good completions, minus one half",
            low=-0.5,
            high=0.5,
        ),
        "n_again": integer("repeated judgements of two completions", low=0),
        **measure_columns(
            "self_consistency", "share of repeated judgements that equal the first", **UNIT
        ),
        **PACE_COLUMNS,
        "n_followed": integer("votes with a previous vote, displayed sides of both known", low=0),
        **measure_columns(
            "same_as_before",
            "share that repeat the previous vote's displayed side: left, right or neither",
            **UNIT,
        ),
        "n_gold": integer("first judgements of gold comparisons", low=0),
        **measure_columns("gold_accuracy", "share of these that are correct", **UNIT),
        **CONFIDENCE_COLUMNS,
    },
    key=("annotator_id",),
)


def annotator_figures(
    votes: pd.DataFrame,
    model: JointModel,
    *,
    comparisons: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """ANNOTATOR_FIGURES of a VOTES frame and its joint model, least reliable annotator first.

    `comparisons` supply gold choices and completion lengths; without them, figures that need them
    are missing. Raises FrameError.
    """
    judgements = drop_machine_votes(counting_votes(votes))
    comparisons = None if comparisons is None else check_frame(comparisons, COMPARISONS)
    annotators = model.annotators
    names = annotators["annotator_id"].to_numpy(dtype=str)
    # the joint model lacks annotators who judged only flagged comparisons
    judgements = keep_rows(
        judgements, (judgements["choice"] != Choice.SKIP) & judgements["annotator_id"].isin(names)
    )
    tell = GroupStatistics(len(names))

    def encode_annotators(who: pd.Series) -> Ints:
        return np.asarray(np.searchsorted(names, who.to_numpy(dtype=str)), dtype=np.int64)

    def share(measure: str, count_name: str, what: "pd.Series[bool]") -> Figures:
        return tell.share(
            measure, count_name, encode_annotators(judgements.loc[what.index, "annotator_id"]), what
        )

    repeats = repeat_judgements(keep_rows(votes, votes["annotator_id"].isin(names)))
    timed_votes, confident_votes = (
        judgements[judgements["duration_s"].notna()],
        compare_with_others(judgements),
    )
    figures = {
        "annotator_id": names,
        "n_votes": annotators["n_votes"].to_numpy(),
        **{
            name: annotators[name].to_numpy()
            for measure in ("reliability", "position_bias")
            for name in interval_columns(measure)
        },
        **tell.share(
            "self_consistency",
            "n_again",
            encode_annotators(repeats["annotator_id"]),
            repeats["same"],
        ),
        **tell.median(
            "median_seconds",
            "n_timed",
            encode_annotators(timed_votes["annotator_id"]),
            timed_votes["duration_s"],
        ),
        **share("too_fast", "n_read", is_too_fast(timed_votes, comparisons)),
        **share("same_as_before", "n_followed", _repeats_side(judgements)),
        **share("gold_accuracy", "n_gold", matches_gold(judgements, comparisons)),
        **tell.confidence(
            encode_annotators(confident_votes["annotator_id"]),
            confident_votes["stated_confidence"],
            confident_votes["is_right"],
        ),
    }
    frame = check_frame(pd.DataFrame(figures), ANNOTATOR_FIGURES)
    return frame.sort_values(["reliability", "annotator_id"], ignore_index=True)


def is_too_fast(timed_votes: pd.DataFrame, comparisons: pd.DataFrame | None) -> "pd.Series[bool]":
    """Whether each vote in `timed_votes` is too fast to read both completions; votes with unknown
    completions are left out.
    """
    comparisons = COMPARISONS.empty_frame() if comparisons is None else comparisons
    length = (comparisons["completion_a"].str.len() + comparisons["completion_b"].str.len()).astype(
        "float64"
    )
    characters = (
        timed_votes["comparison_id"]
        .map(dict(zip(comparisons["comparison_id"], length, strict=True)))
        .astype("float64")
        .dropna()
    )
    return timed_votes.loc[characters.index, "duration_s"] * FASTEST_READING < characters


def _repeats_side(votes: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each vote repeats the annotator's previous displayed side, among votes with known
    sides.
    """
    ordered = votes.sort_values(["annotator_id", "seq"])
    sides = displayed_side(ordered)
    before = sides.groupby(ordered["annotator_id"]).shift()
    followed = before.notna() & sides.notna()
    return sides[followed] == before[followed]


def displayed_side(votes: pd.DataFrame) -> pd.Series:
    """The displayed side of each vote: 1 left, -1 right, 0 neither; missing if `is_swapped` is, for
    ties too.
    """
    side = votes["choice"].map({Choice.A: 1.0, Choice.B: -1.0}).fillna(0.0)
    return side.where(~votes["is_swapped"].fillna(False).astype(bool), -side).where(
        votes["is_swapped"].notna()
    )


def matches_gold(votes: pd.DataFrame, comparisons: pd.DataFrame | None) -> "pd.Series[bool]":
    """Whether each vote on a gold comparison is correct; both_bad counts as a tie. Repeats are left
    out.
    """
    comparisons = COMPARISONS.empty_frame() if comparisons is None else comparisons
    gold_comparisons = comparisons[comparisons["gold"].notna() & comparisons["repeat_of"].isna()]
    gold = (
        votes["comparison_id"]
        .map(dict(zip(gold_comparisons["comparison_id"], gold_comparisons["gold"], strict=True)))
        .dropna()
    )
    choice = votes.loc[gold.index, "choice"]
    return choice.where(~choice.isin(TIES), Choice.TIE.value) == gold


def compare_with_others(votes: pd.DataFrame, by: str = "comparison_id") -> pd.DataFrame:
    """annotator_id, stated_confidence and is_right of votes for a side where the other votes of the
    same `by` have a majority.
    """
    side_votes = votes[votes["repeat_of"].isna() & votes["choice"].isin([Choice.A, Choice.B])]
    sign = (side_votes["choice"] == Choice.A).astype("int64") * 2 - 1
    others = sign.groupby(side_votes[by]).transform("sum") - sign
    is_comparable = side_votes["stated_confidence"].notna() & (others != 0)
    return side_votes.loc[is_comparable, ["annotator_id", "stated_confidence"]].assign(
        is_right=(others[is_comparable] > 0) == (sign[is_comparable] > 0)
    )
