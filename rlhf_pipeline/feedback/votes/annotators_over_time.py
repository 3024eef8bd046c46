"""Computes annotator figures per week.

A window is a week from Monday on. A vote belongs to the window of its day, and a window uses only
the votes of its own days:

- An annotator's vote on a comparison is the last one within the window. A vote that is revised or
  repeated in a later window still counts in its own.
- "The others" are annotators who judged the same comparison in the same window.

So a late vote changes only the window of its day. Only self-consistency looks back, to the
annotator's earlier votes (by seq, so later votes do not change it).

    agreement          share of the others' votes with the same answer: a, b or neither
    gold_accuracy      gold comparisons, in the window of the annotator's first vote on them
    median_seconds, too_fast, mean_confidence, confidence_gap, brier
                       as in `annotators`, for the votes of the window
    share_left         of votes for a side with known display: one half is unbiased
    self_consistency   a swapped repeat or a later pass against the annotator's earlier vote

Every figure has a count and an interval. An annotator without votes in a window has no row there;
figures without data are missing.
"""

from datetime import date

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, VOTES, FrameSchema, check_frame, integer, text
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.votes.agreement import SWAPPED
from rlhf_pipeline.feedback.votes.annotators import (
    CONFIDENCE_COLUMNS,
    PACE_COLUMNS,
    compare_with_others,
    displayed_side,
    is_too_fast,
    matches_gold,
)
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes, keep_last_turns
from rlhf_pipeline.feedback.votes.statistics import (
    UNIT,
    Figures,
    GroupStatistics,
    Ints,
    measure_columns,
)

# Other columns are dropped: copying them for a million votes is costly.
NEEDED = [
    "seq",
    "comparison_id",
    "annotator_id",
    "choice",
    "repeat_of",
    "is_swapped",
    "pass_no",
    "revision_no",
    "duration_s",
    "stated_confidence",
    "first_day",
    "last_day",
]
WINDOW = {
    "first_day": text("first UTC day of the window, YYYY-MM-DD"),
    "last_day": text("last UTC day of the window"),
}
ANNOTATORS_OVER_TIME = FrameSchema(
    "annotators_over_time",
    {
        "annotator_id": text("pseudonym"),
        **WINDOW,
        "n_votes": integer("votes in the window, without skips", low=1),
        "n_compared": integer(
            "of these, votes on comparisons that others judged in the same window", low=0
        ),
        **measure_columns("agreement", "share of the others' votes with the same answer", **UNIT),
        "n_gold": integer(
            "gold comparisons that the annotator first judged in this window",
            low=0,
        ),
        **measure_columns("gold_accuracy", "share of these that are correct", **UNIT),
        **PACE_COLUMNS,
        "n_sided": integer("votes for a side whose displayed side is known", low=0),
        **measure_columns("share_left", "share for the left side", **UNIT),
        "n_again": integer("repeated judgements of two completions", low=0),
        **measure_columns(
            "self_consistency", "share that equal the annotator's earlier judgement", **UNIT
        ),
        **CONFIDENCE_COLUMNS,
    },
    key=("annotator_id", "first_day"),
)
WINDOW_DAYS = 7


def annotators_over_time(
    cast: pd.DataFrame,
    comparisons: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """ANNOTATORS_OVER_TIME of VOTES: one row per annotator and window with votes, by annotator and
    time.

    `comparisons` supply gold choices and completion lengths; without them, figures that need them
    are missing. The order of rows is irrelevant. Raises FrameError.
    """
    everything = _assign_windows(cast)[NEEDED]
    judgements = _latest_in_window(everything)
    if judgements.empty:
        return ANNOTATORS_OVER_TIME.empty_frame()
    comparisons = None if comparisons is None else check_frame(comparisons, COMPARISONS)
    cells = (
        judgements[["annotator_id", "first_day"]]
        .drop_duplicates()
        .sort_values(["annotator_id", "first_day"], ignore_index=True)
    )
    place = cells.reset_index().rename(columns={"index": "cell"})
    judgements = judgements.merge(place, on=["annotator_id", "first_day"])
    judgements.index = pd.Index(judgements["seq"].to_numpy())
    tell = GroupStatistics(len(cells))

    def share(measure: str, count_name: str, what: "pd.Series[bool]") -> Figures:
        return tell.share(measure, count_name, _codes(judgements.loc[what.index, "cell"]), what)

    timed_votes, confident_votes = (
        judgements[judgements["duration_s"].notna()],
        compare_with_others(judgements, "in_window"),
    )
    side = displayed_side(judgements).dropna()
    frame = pd.DataFrame(
        {
            "annotator_id": cells["annotator_id"],
            "first_day": cells["first_day"],
            "last_day": judgements.groupby("cell")["last_day"].first(),
            "n_votes": tell.count(_codes(judgements["cell"])),
            **_agreement(tell, judgements),
            **share(
                "gold_accuracy",
                "n_gold",
                matches_gold(_first_seen_in_window(everything, judgements), comparisons),
            ),
            **tell.median(
                "median_seconds", "n_timed", _codes(timed_votes["cell"]), timed_votes["duration_s"]
            ),
            **share("too_fast", "n_read", is_too_fast(timed_votes, comparisons)),
            **share("share_left", "n_sided", side[side != 0] > 0),
            **share("self_consistency", "n_again", _repeats_answer(everything, judgements)),
            **tell.confidence(
                _codes(judgements.loc[confident_votes.index, "cell"]),
                confident_votes["stated_confidence"],
                confident_votes["is_right"],
            ),
        }
    )
    return check_frame(frame, ANNOTATORS_OVER_TIME)


def _assign_windows(cast: pd.DataFrame) -> pd.DataFrame:
    """VOTES without machine votes, by seq, with first_day and last_day of their window."""
    checked = drop_machine_votes(check_frame(cast, VOTES)).sort_values("seq")
    # date.fromordinal(1) is a Monday.
    first = {
        day: (date.fromisoformat(day).toordinal() - 1) // WINDOW_DAYS * WINDOW_DAYS + 1
        for day in checked["day"].unique()
    }
    window = {
        day: (
            date.fromordinal(begin).isoformat(),
            date.fromordinal(min(begin + WINDOW_DAYS - 1, date.max.toordinal())).isoformat(),
        )
        for day, begin in first.items()
    }
    columns = {
        name: checked["day"].map({day: ends[i] for day, ends in window.items()})
        for i, name in enumerate(WINDOW)
    }
    return checked.assign(**columns)


def _latest_in_window(cast: pd.DataFrame) -> pd.DataFrame:
    """Each annotator's counting vote per comparison and window, without skips; `in_window` numbers
    pairs of comparison and window.
    """
    judge = cast.groupby(["annotator_id", "comparison_id", "first_day"], sort=False).ngroup()
    last = keep_last_turns(cast, judge.to_numpy()).sort_values("seq")
    judgements = last[last["choice"] != Choice.SKIP]
    window, windows = pd.factorize(judgements["first_day"])
    return judgements.assign(
        in_window=pd.factorize(judgements["comparison_id"])[0] * np.int64(len(windows)) + window
    )


def _first_seen_in_window(cast: pd.DataFrame, judgements: pd.DataFrame) -> pd.DataFrame:
    """The rows of `judgements` in the window of the annotator's first vote on the comparison: later
    votes on a known comparison are better.
    """
    # by seq
    first_votes = cast[cast["choice"] != Choice.SKIP].drop_duplicates(
        ["annotator_id", "comparison_id"]
    )
    first = pd.MultiIndex.from_frame(first_votes[["annotator_id", "comparison_id", "first_day"]])
    return judgements[
        pd.MultiIndex.from_frame(judgements[["annotator_id", "comparison_id", "first_day"]]).isin(
            first
        )
    ]


def _codes(cells: pd.Series) -> Ints:
    return np.asarray(cells, dtype=np.int64)


def _agreement(tell: GroupStatistics, judgements: pd.DataFrame) -> Figures:
    """How many of the others on its comparison in its window gave each vote's answer, without
    repeats; the interval is Wilson's.
    """
    first = judgements[judgements["repeat_of"].isna()]
    answer = first["choice"].replace(Choice.BOTH_BAD, Choice.TIE)
    n_others = first.groupby("in_window")["choice"].transform("size") - 1
    n_same = first.groupby(["in_window", answer])["choice"].transform("size") - 1
    has = n_others > 0
    code = _codes(first.loc[has, "cell"])
    n, shares = tell.count(code), n_same[has] / n_others[has]
    return {"n_compared": n, **tell.wilson("agreement", tell.sums(code, shares), n)}


def _repeats_answer(cast: pd.DataFrame, judgements: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each repeated judgement equals the annotator's earlier one, indexed by seq.

    A repeat, which swaps the sides, is compared with the last earlier vote on its original; a later
    pass with the last vote of the pass before.
    """
    not_skipped = cast[cast["choice"] != Choice.SKIP]
    is_repeat = judgements["repeat_of"].notna()
    repeats = judgements.loc[is_repeat].assign(about=judgements["repeat_of"], turn=0)
    passes = judgements.loc[~is_repeat & (judgements["pass_no"].fillna(1) > 1)].assign(
        about=judgements["comparison_id"], turn=lambda later: later["pass_no"] - 1
    )
    of_any = not_skipped.assign(about=not_skipped["comparison_id"], turn=0)
    of_pass = not_skipped.assign(
        about=not_skipped["comparison_id"], turn=not_skipped["pass_no"].fillna(1)
    )
    matches = []
    by = ["annotator_id", "about", "turn"]
    for later, before in ((repeats, of_any), (passes, of_pass)):
        both = later[["seq", *by, "choice"]].merge(
            before[["seq", *by, "choice"]], on=by, suffixes=("", "_first")
        )
        both = both[both["seq_first"] < both["seq"]].sort_values("seq_first")
        matches.append(both.drop_duplicates("seq", keep="last"))
    swapped, same = matches
    swapped = swapped.assign(
        choice=swapped["choice"].map(lambda choice: SWAPPED.get(choice, choice))
    )
    both = pd.concat([swapped, same])
    return pd.Series(
        (both["choice"] == both["choice_first"]).to_numpy(dtype=bool), index=both["seq"].to_numpy()
    )
