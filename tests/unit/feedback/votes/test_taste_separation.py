"""After a change of taste nothing that a completion was worth before it is in a label since."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.feedback.votes import TasteChanges, joint_model, separate_old_completions
from tests.unit.feedback.votes.simulated import comparisons_of, votes_of

N_OLD, N_NEW = 6, 2  # comparisons of the same two completions


def reversed_taste() -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Everybody preferred a in each comparison, five votes; then b, in two more comparisons of the
    same completions.
    """
    n = N_OLD + N_NEW
    comparison, annotator = np.repeat(np.arange(n), 5), np.tile(np.arange(5), n)
    votes = votes_of(
        comparison,
        annotator,
        np.where(comparison < N_OLD, "a", "b"),
        prompt=np.zeros(5 * n, dtype=int),
    )
    comparisons = comparisons_of(
        np.zeros(n, dtype=int), np.zeros(n, dtype=int), np.ones(n, dtype=int)
    )
    return votes, comparisons, int(votes["seq"].iloc[5 * N_OLD])


def p_a(votes: pd.DataFrame, comparisons: pd.DataFrame) -> np.ndarray:
    return (
        joint_model(votes, comparisons)
        .labels.set_index("comparison_id")["p_a"]
        .loc[comparisons["comparison_id"]]
        .to_numpy()
    )


def test_labels_since_a_change_use_no_earlier_utility() -> None:
    votes, comparisons, change = reversed_taste()
    # six comparisons of before outvote two of today
    assert (p_a(votes, comparisons)[N_OLD:] > 0.5).all()
    probabilities = p_a(votes, separate_old_completions(comparisons, votes, TasteChanges(change)))
    assert (probabilities[N_OLD:] < 0.5).all()
    assert (probabilities[:N_OLD] > 0.5).all()


def test_comparison_judged_on_both_sides_of_a_change_counts_as_new() -> None:
    votes, comparisons, change = reversed_taste()
    late = votes.assign(
        seq=votes["seq"].where(votes["vote_id"] != votes["vote_id"].iloc[0], votes["seq"].max() + 1)
    )
    parted = separate_old_completions(comparisons, late, TasteChanges(change)).set_index(
        "comparison_id"
    )
    is_today = parted["completion_a_id"].isin(comparisons["completion_a_id"])
    assert is_today.tolist() == [True, *[False] * (N_OLD - 1), *[True] * N_NEW]


@pytest.mark.parametrize("change", [None, 1])
def test_without_a_change_nothing_is_separated(change: int | None) -> None:
    votes, comparisons, _ = reversed_taste()
    pd.testing.assert_frame_equal(
        separate_old_completions(comparisons, votes, TasteChanges(change)), comparisons
    )
