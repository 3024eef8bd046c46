"""What is learnt of annotators, from votes as they lie in the snapshots of several days."""

import pandas as pd
import pytest

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.votes.learning import judged_ids, last_words, learn_annotators
from tests.unit.votes.simulated import simulate, votes_of


def test_everything_is_learnt_from_the_same_votes():
    truth = simulate(80, n_annotators=8)
    learnt = learn_annotators(truth.votes, truth.comparisons)
    report = learnt.report()
    assert report.n_annotators == len(learnt.figures) == len(learnt.model.annotators) == 8
    assert report.n_comparisons == len(learnt.model.labels) == 80
    assert report.alpha is not None
    assert report.alpha.low < report.alpha.value < report.alpha.high
    assert report.agreement.n_votes == len(truth.votes)
    assert len(report.log_likelihoods) == report.n_iterations
    assert len(learnt.kappas) == 8 * 7 / 2


def test_one_annotator_agrees_with_nobody():
    votes = votes_of([0, 1, 2], 0, ["a", "b", "a"])
    learnt = learn_annotators(votes, simulate(3).comparisons)
    assert (learnt.alpha, learnt.kappa) == (None, None)
    assert learnt.kappas.empty
    one = learnt.figures.iloc[0]
    assert one["reliability_high"] - one["reliability_low"] > 0.1  # nobody to compare with: the population's, and wide


def test_where_all_are_ties_chance_explains_all():
    votes = votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["tie"] * 4)
    learnt = learn_annotators(votes, simulate(2).comparisons)
    assert (learnt.alpha, learnt.kappa) == (None, None)
    assert learnt.model.labels["p_a"].to_numpy() == pytest.approx(0.5, abs=1e-6)


def test_without_votes_nothing_is_learnt():
    with pytest.raises(NotEnoughVotes, match="No vote judges"):
        learn_annotators(votes_of([], 0, []), simulate(2).comparisons)


def test_of_two_snapshots_the_later_word_of_an_annotator_counts():
    first = votes_of([0, 1], 0, ["a", "a"])
    again = votes_of([0], 0, ["b"]).assign(vote_id="later", seq=7, day="2026-01-03")
    both = pd.concat([again, first], ignore_index=True)
    assert last_words(both)[["comparison_id", "choice"]].to_numpy().tolist() == [["c00001", "a"], ["c00000", "b"]]
    assert last_words(both, up_to_seq=6)["choice"].tolist() == ["a", "a"]
    assert last_words(both, up_to_seq=0).empty


def test_a_repeat_needs_its_original_too():
    votes = votes_of([3, 7], [0, 0], ["a", "b"]).assign(repeat_of=[None, "c00001"])
    assert judged_ids(votes) == ["c00001", "c00003", "c00007"]
