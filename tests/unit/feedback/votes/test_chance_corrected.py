"""Alpha equals that of its library, with intervals that cover."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.feedback.votes.chance_corrected import krippendorff_alpha
from tests.unit.feedback.votes.simulated import simulate, votes_of

NUMBERS = {"a": 0, "b": 1, "tie": 2}


def table(votes: pd.DataFrame) -> np.ndarray:
    """Votes for a, b and neither of each comparison."""
    counted = pd.crosstab(votes["comparison_id"], votes["choice"].map(NUMBERS))
    return counted.reindex(columns=[0, 1, 2], fill_value=0).to_numpy()


def test_alpha_is_that_of_krippendorffs_library():
    import krippendorff

    # some comparisons with one vote
    votes = simulate(120, n_annotators=6, votes_each=3).votes.sample(frac=0.7, random_state=0)
    theirs = krippendorff.alpha(value_counts=table(votes), level_of_measurement="nominal")
    assert krippendorff_alpha(votes).value == pytest.approx(theirs)


def test_the_interval_covers_the_value_of_a_hundredfold_sample():
    truth = krippendorff_alpha(simulate(6000, seed=99).votes).value
    intervals = [krippendorff_alpha(simulate(60, seed=seed).votes) for seed in range(20)]
    assert np.mean([i.low <= truth <= i.high for i in intervals]) >= 0.8


def test_full_agreement_is_one_and_constant_answers_have_no_alpha():
    both = votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["a", "a", "b", "b"])
    assert krippendorff_alpha(both).value == 1.0
    always_a = votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["a"] * 4)
    assert krippendorff_alpha(always_a) is None


def test_full_agreement_on_few_comparisons_is_not_certainty():
    few, many = (
        krippendorff_alpha(
            votes_of(c := [*range(n)] * 2, [0] * n + [1] * n, ["a", "b"] * n, prompt=c)
        )
        for n in (6, 200)
    )
    assert few.value == few.high == many.value == many.high == 1.0
    assert few.low < 0.5
    assert 0.9 < many.low < 1.0
    # Six of one prompt are six of a kind.
    short = krippendorff_alpha(
        votes_of([*range(6)] * 2, [0] * 6 + [1] * 6, ["a", "b"] * 6, prompt=[0] * 12)
    )
    assert short.low < few.low


def test_full_disagreement_on_few_comparisons_is_not_certainty():
    numbers = [*range(6)]
    split = krippendorff_alpha(
        votes_of(numbers * 2, [0] * 6 + [1] * 6, ["a"] * 6 + ["b"] * 6, prompt=numbers * 2)
    )
    assert -1 <= split.low <= split.value < -0.5
    assert -0.5 < split.high < 0.5
    one_of_three = krippendorff_alpha(
        votes_of(
            numbers * 3, [0] * 6 + [1] * 6 + [2] * 6, ["a"] * 6 + ["b"] * 12, prompt=numbers * 3
        )
    )
    assert one_of_three.low < one_of_three.value < one_of_three.high


def test_without_overlap_there_is_no_agreement():
    lone_votes = votes_of([0, 1], [0, 1], ["a", "b"])
    assert krippendorff_alpha(lone_votes) is None


def test_both_bad_and_tie_are_one_answer():
    assert (
        krippendorff_alpha(
            votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["tie", "both_bad", "a", "a"])
        ).value
        == 1.0
    )
