"""Alpha and kappas against the libraries that are known for them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import fleiss_kappa as fleiss_of_statsmodels

from rlhf_pipeline.votes.chance_corrected import fleiss_kappa, krippendorff_alpha, pairwise_kappa
from tests.unit.votes.simulated import simulate, votes_of

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


def test_fleiss_is_that_of_statsmodels():
    votes = simulate(80, n_annotators=9, votes_each=4).votes
    assert fleiss_kappa(votes).value == pytest.approx(fleiss_of_statsmodels(table(votes)))


def test_cohen_is_that_of_scikit_learn():
    votes = simulate(60, n_annotators=3, votes_each=3).votes
    wide = votes.pivot(index="comparison_id", columns="annotator_id", values="choice")
    pairs = pairwise_kappa(votes)
    assert len(pairs) == 3
    for pair in pairs.itertuples():
        assert pair.n == 60
        assert pair.kappa == pytest.approx(
            cohen_kappa_score(wide[pair.annotator_1], wide[pair.annotator_2])
        )
        assert pair.agreement == pytest.approx(
            (wide[pair.annotator_1] == wide[pair.annotator_2]).mean()
        )


def test_the_interval_covers_the_value_of_a_hundredfold_sample():
    truth = krippendorff_alpha(simulate(6000, seed=99).votes).value
    intervals = [krippendorff_alpha(simulate(60, seed=seed).votes) for seed in range(20)]
    assert np.mean([i.low <= truth <= i.high for i in intervals]) >= 0.8


def test_full_agreement_is_one_and_the_same_answer_throughout_is_nothing():
    both = votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["a", "a", "b", "b"])
    assert krippendorff_alpha(both).value == fleiss_kappa(both).value == 1.0
    always_a = votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["a"] * 4)
    assert krippendorff_alpha(always_a) is None
    assert fleiss_kappa(always_a) is None


@pytest.mark.parametrize("measure", [krippendorff_alpha, fleiss_kappa])
def test_full_agreement_on_few_comparisons_is_not_certainty(measure):
    few, many = (
        measure(votes_of(c := [*range(n)] * 2, [0] * n + [1] * n, ["a", "b"] * n, prompt=c))
        for n in (6, 200)
    )
    assert few.value == few.high == many.value == many.high == 1.0
    assert few.low < 0.5
    assert 0.9 < many.low < 1.0
    # Six of one prompt are six of a kind.
    one = measure(votes_of([*range(6)] * 2, [0] * 6 + [1] * 6, ["a", "b"] * 6, prompt=[0] * 12))
    assert one.low < few.low


@pytest.mark.parametrize("measure", [krippendorff_alpha, fleiss_kappa])
def test_full_disagreement_on_few_comparisons_is_not_certainty(measure):
    numbers = [*range(6)]
    split = measure(
        votes_of(numbers * 2, [0] * 6 + [1] * 6, ["a"] * 6 + ["b"] * 6, prompt=numbers * 2)
    )
    assert -1 <= split.low <= split.value < -0.5
    assert -0.5 < split.high < 0.5
    one_of_three = measure(
        votes_of(
            numbers * 3, [0] * 6 + [1] * 6 + [2] * 6, ["a"] * 6 + ["b"] * 12, prompt=numbers * 3
        )
    )
    assert one_of_three.low < one_of_three.value < one_of_three.high


def test_without_overlap_there_is_no_agreement():
    apart = votes_of([0, 1], [0, 1], ["a", "b"])
    assert krippendorff_alpha(apart) is None
    assert fleiss_kappa(apart) is None
    assert pairwise_kappa(apart).empty


def test_both_bad_and_tie_are_one_answer():
    assert (
        krippendorff_alpha(
            votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["tie", "both_bad", "a", "a"])
        ).value
        == 1.0
    )


def test_a_kappa_of_few_comparisons_has_wide_ends():
    said = ["a", "b"] * 5
    few, many = (
        pairwise_kappa(votes_of([*range(n)] * 2, [0] * n + [1] * n, (said * (n // 10)) * 2)).iloc[0]
        for n in (10, 100)
    )
    assert few["kappa"] == many["kappa"] == few["kappa_high"] == 1.0
    assert few["kappa_low"] < 0.5 < many["kappa_low"] < 1.0


def test_with_too_many_annotators_the_busiest_are_compared():
    votes = votes_of(
        [*range(20), *range(20), *range(12), *range(12)],
        [0] * 20 + [1] * 20 + [2] * 12 + [3] * 12,
        ["a", "b"] * 32,
    )
    assert len(pairwise_kappa(votes)) == 6
    busiest = pairwise_kappa(votes, most_annotators=3)
    assert busiest[["annotator_1", "annotator_2", "n"]].to_numpy().tolist() == [
        ["ann0000", "ann0001", 20], ["ann0000", "ann0002", 12], ["ann0001", "ann0002", 12],
    ]  # fmt: skip
