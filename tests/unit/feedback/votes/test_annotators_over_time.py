"""Figures by window: each vote counts where it was cast, and a late one changes its own window
alone.
"""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.core.intervals import wilson_bounds
from rlhf_pipeline.feedback.votes.annotators_over_time import (
    annotators_over_time,
)
from tests.unit.feedback.votes.simulated import comparisons_of, simulate, votes_of

MONDAY = "2026-01-05"
TUESDAY = "2026-01-06"
SUNDAY = "2026-01-11"
NEXT_MONDAY = "2026-01-12"


def casts(*votes: tuple[str, int, int, str], **more: object) -> pd.DataFrame:
    """(day, comparison, annotator, choice) in order of seq; `more` are columns."""
    days, comparison, annotator, choice = (
        (list(column) for column in zip(*votes, strict=True)) if votes else ([], [], [], [])
    )
    rows = votes_of(comparison, annotator, choice).assign(day=days, pass_no=1, **more)
    return check_frame(rows, VOTES)


def of_world(**how: object) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """A simulated world over nine weeks, and on which comparison each day fell."""
    truth = simulate(400, n_annotators=12, votes_each=5, **how)  # type: ignore[arg-type]
    rng, n = np.random.default_rng(5), len(truth.votes)
    days = pd.date_range(MONDAY, periods=63).strftime("%Y-%m-%d").to_numpy()
    of_comparison = np.sort(rng.integers(0, 63, 400))
    frame = truth.votes.assign(
        day=days[np.repeat(of_comparison, 5)],
        pass_no=1,
        duration_s=rng.lognormal(2, 0.5, n),
        stated_confidence=rng.uniform(0.5, 1, n),
    )
    comparisons = truth.comparisons.assign(
        gold=np.where(truth.d > 0, "a", "b"), completion_a="x" * 300, completion_b="y" * 300
    )
    return check_frame(frame, VOTES), comparisons, truth.d


def test_weekly_windows_begin_on_mondays_without_gaps():
    windows = annotators_over_time(
        casts((SUNDAY, 0, 0, "a"), (NEXT_MONDAY, 1, 0, "a"), (MONDAY, 2, 0, "a"))
    )
    assert windows[["first_day", "last_day", "n_votes"]].values.tolist() == [
        [MONDAY, SUNDAY, 2],
        [NEXT_MONDAY, "2026-01-18", 1],
    ]


def test_unmeasured_figure_is_missing_not_zero():
    row = annotators_over_time(casts((MONDAY, 0, 0, "a"))).iloc[0]
    assert (
        row[["n_compared", "n_gold", "n_timed", "n_read", "n_sided", "n_again", "n_sure"]].tolist()
        == [0] * 7
    )
    for measure in (
        "agreement",
        "gold_accuracy",
        "median_seconds",
        "too_fast",
        "share_left",
        "self_consistency",
        "confidence_gap",
        "brier",
    ):
        assert row[[measure, f"{measure}_low", f"{measure}_high"]].isna().all(), measure


def test_a_vote_revised_later_counts_in_its_own_window():
    first = [(MONDAY, 0, 0, "a"), (MONDAY, 0, 1, "a"), (MONDAY, 1, 0, "a"), (MONDAY, 1, 1, "b")]
    before = annotators_over_time(casts(*first))
    after = annotators_over_time(
        casts(*first, (NEXT_MONDAY, 0, 0, "b"), (NEXT_MONDAY, 1, 0, "skip"))
    )
    own = after["first_day"] == MONDAY
    pd.testing.assert_frame_equal(after[own].reset_index(drop=True), before)
    assert after[~own][["annotator_id", "n_votes", "n_compared"]].values.tolist() == [
        ["ann0000", 1, 0]
    ]


def test_last_vote_of_a_window_counts_and_withdrawn_ones_do_not():
    windows = annotators_over_time(
        casts(
            (MONDAY, 0, 0, "a"),
            (MONDAY, 0, 1, "b"),
            (TUESDAY, 0, 0, "b"),
            (MONDAY, 1, 0, "a"),
            (SUNDAY, 1, 0, "skip"),
        )
    ).set_index("annotator_id")
    assert (windows.loc["ann0000", "n_votes"], windows.loc["ann0000", "n_compared"]) == (1, 1)
    assert windows.loc["ann0000", "agreement"] == 1.0


def test_late_vote_changes_only_its_window():
    cast, comparisons, _ = of_world()
    day = "2026-01-21"  # of the third week
    late = casts((day, 7, 3, "tie"), (day, 399, 4, "b"), is_swapped=True).assign(
        seq=[90_001, 90_002], vote_id=["late", "later"]
    )
    both = pd.concat([cast, late], ignore_index=True)
    before, after = (
        annotators_over_time(frame, comparisons).set_index(["annotator_id", "first_day"])
        for frame in (cast, both)
    )
    changed = [
        key
        for key in after.index
        if key not in before.index or not after.loc[key].equals(before.loc[key])
    ]
    assert changed
    assert {first_day for _, first_day in changed} == {"2026-01-19"}


def test_agreement_is_the_share_of_the_others_with_the_same_answer():
    choices = [(0, "a"), (0, "a"), (0, "b"), (1, "tie"), (1, "both_bad")]
    windows = annotators_over_time(
        casts(*((MONDAY, at, who % 3, choice) for who, (at, choice) in enumerate(choices)))
    ).set_index("annotator_id")
    assert windows["agreement"].tolist() == pytest.approx([0.75, 0.75, 0.0])
    assert windows["n_compared"].tolist() == [2, 2, 1]
    low, high = wilson_bounds(np.array([0.75]), np.array([2]))
    row = windows.loc["ann0000"]
    assert (row["agreement_low"], row["agreement_high"]) == pytest.approx((low[0], high[0]))


def test_repeated_gold_does_not_count_again():
    comparisons = comparisons_of(np.zeros(2, int), [0, 2], [1, 3]).assign(gold="a")
    again = casts(
        (MONDAY, 0, 0, "b"),
        (TUESDAY, 0, 0, "a"),
        (NEXT_MONDAY, 0, 0, "a"),
        (NEXT_MONDAY, 1, 0, "a"),
        (SUNDAY, 1, 0, "b"),
    )
    first, second = annotators_over_time(again, comparisons).itertuples(index=False)
    assert (first.n_gold, first.gold_accuracy) == (1, 1.0), (
        "its last word in the week; a late vote for what is known already does not count"
    )
    assert (second.n_gold, second.gold_accuracy) == (1, 1.0)


def test_gold_speed_and_confidence_are_per_window():
    comparisons = comparisons_of(
        np.arange(12), np.zeros(12, dtype=np.int64), np.ones(12, dtype=np.int64)
    ).assign(gold="a", completion_a="x" * 150, completion_b="y" * 50)
    votes = [(MONDAY, i, 0, "a" if i < 3 else "b") for i in range(6)] + [
        (NEXT_MONDAY, i, 0, "a") for i in range(6, 12)
    ]
    votes += [(NEXT_MONDAY, i, 1, "a") for i in range(6, 12)]
    seconds = [1.0, 1, 1, 3, 3, 3, *range(10, 16), *[5.0] * 6]
    windows = annotators_over_time(
        casts(*votes).assign(duration_s=seconds, stated_confidence=0.75), comparisons
    )
    first, second, third = (row for _, row in windows.iterrows())
    assert (first["n_gold"], first["gold_accuracy"], second["gold_accuracy"]) == (6, 0.5, 1.0)
    assert (first["median_seconds"], first["median_seconds_low"], first["median_seconds_high"]) == (
        2.0,
        1.0,
        3.0,
    )
    assert (second["median_seconds"], third["median_seconds"]) == (12.5, 5.0)
    # two hundred characters in a second
    assert (first["n_read"], first["too_fast"], second["too_fast"]) == (6, 0.5, 0.0)
    # in the first week nobody else judged
    assert (first["n_sure"], second["n_sure"], second["mean_confidence"]) == (0, 6, 0.75)
    assert second["confidence_gap"] == pytest.approx(-0.25)
    assert second["brier"] == pytest.approx(0.0625)


def test_self_consistency_compares_with_earlier_votes():
    cast = casts(
        (MONDAY, 0, 0, "a"),
        (MONDAY, 1, 0, "a"),
        (MONDAY, 2, 0, "tie"),
        (MONDAY, 0, 1, "b"),
        (NEXT_MONDAY, 10, 0, "b"),
        (NEXT_MONDAY, 11, 0, "a"),
        (NEXT_MONDAY, 12, 0, "tie"),
        (NEXT_MONDAY, 13, 0, "a"),
        (NEXT_MONDAY, 0, 1, "b"),
    )
    of = {"c00010": "c00000", "c00011": "c00001", "c00012": "c00002", "c00013": "c00099"}
    cast["repeat_of"] = cast["comparison_id"].map(of)
    cast.loc[cast["seq"] == 9, "pass_no"] = 2
    windows = annotators_over_time(cast).set_index(["annotator_id", "first_day"])
    mine, theirs = windows.loc[("ann0000", NEXT_MONDAY)], windows.loc[("ann0001", NEXT_MONDAY)]
    # b of the swapped one is a, as before; a is another side; a tie stays one; of the last nobody
    # judged the original
    assert (mine["n_again"], mine["self_consistency"]) == (3, pytest.approx(2 / 3))
    assert (theirs["n_again"], theirs["self_consistency"]) == (1, 1.0)
    assert windows.loc[("ann0000", MONDAY), "n_again"] == 0
    # changed after the repeat was judged
    later = casts((MONDAY, 1, 0, "b")).assign(seq=99, vote_id="later")
    again = annotators_over_time(pd.concat([cast, later], ignore_index=True)).set_index(
        ["annotator_id", "first_day"]
    )
    assert again.loc[("ann0000", NEXT_MONDAY), "self_consistency"] == pytest.approx(2 / 3)


def test_machines_have_no_windows_and_bad_frames_are_refused():
    cast = casts((MONDAY, 0, 0, "a"), (MONDAY, 0, 1, "a"))
    assert annotators_over_time(cast.assign(annotator_kind=["human", "machine"]))[
        "annotator_id"
    ].tolist() == ["ann0000"]
    with pytest.raises(FrameError, match="missing columns"):
        annotators_over_time(cast.drop(columns="seq"))
