"""Each annotator's figures are what was done, with ends that say how much was seen."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.intervals import wilson_bounds
from rlhf_pipeline.feedback.votes.annotators import annotator_figures
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.joint_model import joint_model
from tests.unit.feedback.votes.simulated import comparisons_of, simulate, votes_of


def make_shown(n: int, **columns: object) -> pd.DataFrame:
    return comparisons_of(
        np.arange(n), np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64)
    ).assign(**columns)


def figures(votes: pd.DataFrame, **more: object) -> pd.DataFrame:
    model = joint_model(counting_votes(votes))
    figures = annotator_figures(votes, model, **more)  # type: ignore[arg-type]
    return figures.set_index("annotator_id")


def ends(row: pd.Series, measure: str) -> list[float]:
    return row[[measure, f"{measure}_low", f"{measure}_high"]].tolist()


def test_figures_list_the_least_reliable_annotator_first():
    truth = simulate(60, n_annotators=6)
    model = joint_model(truth.votes)
    table = annotator_figures(truth.votes, model)
    known = model.annotators.set_index("annotator_id").loc[table["annotator_id"]].reset_index()
    for name in ("n_votes", *ends_of("reliability"), *ends_of("position_bias")):
        assert table[name].tolist() == known[name].tolist()
    assert table["reliability"].is_monotonic_increasing


def ends_of(measure: str) -> list[str]:
    return [measure, f"{measure}_low", f"{measure}_high"]


def test_unmeasured_figure_is_missing_not_zero():
    row = figures(votes_of([0, 1, 2], 0, ["a", "b", "tie"])).iloc[0]
    assert row[["n_again", "n_timed", "n_read", "n_gold", "n_sure"]].tolist() == [0] * 5
    assert row["n_followed"] == 0  # nobody knows which side stood left
    for measure in (
        "position_bias",
        "self_consistency",
        "median_seconds",
        "too_fast",
        "same_as_before",
        "gold_accuracy",
        "confidence_gap",
        "brier",
    ):
        assert np.isnan(ends(row, measure)).all(), measure
    assert np.isnan(row["mean_confidence"])


def test_only_the_last_pass_is_timed_and_compared_with_gold():
    votes = votes_of([0, 1, 0], 0, ["b", "b", "a"]).assign(
        pass_no=[1, 1, 2], duration_s=[1.0, 5.0, 5.0]
    )
    texts = make_shown(2, gold="a", completion_a="x" * 150, completion_b="y" * 50)
    row = figures(votes, comparisons=texts).loc["ann0000"]
    assert (row["n_timed"], row["n_read"], row["too_fast"]) == (2, 2, 0.0)
    assert (row["n_gold"], row["gold_accuracy"]) == (2, 0.5)


def test_median_time_has_an_interval_from_six_votes_on():
    votes = votes_of(range(11), [0] * 6 + [1] * 5, ["a"] * 11)
    table = figures(votes.assign(duration_s=[6.0, 1, 5, 2, 4, 3, *range(5)]))
    assert table.loc["ann0000", "n_timed"] == 6
    # 2 in 64 that all six lie on one side of the true median
    assert ends(table.loc["ann0000"], "median_seconds") == [3.5, 1.0, 6.0]
    assert table.loc["ann0001", "n_timed"] == 5
    assert np.isnan(ends(table.loc["ann0001"], "median_seconds")).all()


def test_too_fast_means_faster_than_reading_both_completions():
    votes = votes_of([0, 1, 2, 3], 0, ["a", "b", "a", "b"]).assign(duration_s=[1.9, 2.0, 2.1, 0.1])
    texts = make_shown(
        3, completion_a="x" * 150, completion_b="y" * 50
    )  # comparison 3 is not known
    row = figures(votes, comparisons=texts).loc["ann0000"]
    assert (row["n_timed"], row["n_read"]) == (4, 3)
    assert row["too_fast"] == pytest.approx(1 / 3)


def test_gold_uses_first_judgements_and_both_kinds_of_tie():
    again = votes_of([9], [0], ["a"]).assign(repeat_of="c00000", vote_id="again", seq=9)
    votes = pd.concat(
        [votes_of([0, 1, 2, 3], 0, ["a", "a", "both_bad", "b"]), again], ignore_index=True
    )
    known = make_shown(4, gold=["a", "b", "tie", None])
    row = figures(votes, comparisons=known).loc["ann0000"]
    assert (row["n_gold"], row["gold_accuracy"]) == (3, pytest.approx(2 / 3))


def test_confidence_is_compared_with_other_annotators():
    # Ten comparisons, all others say a; the one asked says a on seven, always at 0.9.
    choices = ["a"] * 7 + ["b"] * 3
    votes = votes_of(np.tile(range(10), 3), np.repeat(range(3), 10), [*choices, *["a"] * 20])
    sure = [0.9] * 10 + [None] * 20
    table = figures(votes.assign(stated_confidence=sure))
    mine = table.loc["ann0000"]
    assert (mine["n_sure"], mine["mean_confidence"]) == (10, pytest.approx(0.9))
    low, high = wilson_bounds(0.7, 10)
    assert ends(mine, "confidence_gap") == pytest.approx([0.2, 0.9 - high, 0.9 - low])
    assert mine["brier"] == pytest.approx(0.7 * 0.01 + 0.3 * 0.81)
    assert table.loc["ann0001", "n_sure"] == 0


def test_machines_and_skips_have_no_figures():
    votes = votes_of([0, 1], [0, 1], ["a", "skip"])
    machine = votes_of([0], [7], ["a"]).assign(annotator_kind="machine", vote_id="m", seq=9)
    both = pd.concat([votes, machine], ignore_index=True)
    assert figures(both.assign(duration_s=1.0)).index.tolist() == ["ann0000"]


def test_straight_lining_uses_displayed_sides():
    votes = votes_of(range(10), [0] * 5 + [1] * 5, ["a", "b", "b", "a", "tie", *"ababa"])
    plain = figures(votes.assign(is_swapped=False))
    assert (plain.loc["ann0000", "n_followed"], plain.loc["ann0000", "same_as_before"]) == (4, 0.25)
    assert plain.loc["ann0001", "same_as_before"] == 0.0
    # Somebody who always presses left: a where a stood left, b where b did.
    cards = votes.assign(is_swapped=(votes["choice"] == "b").to_numpy())
    assert figures(cards).loc["ann0001", "same_as_before"] == 1.0
