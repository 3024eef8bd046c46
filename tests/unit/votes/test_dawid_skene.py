"""Dawid and Skene's chances: who answers at random weighs little."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.votes.dawid_skene import dawid_skene
from tests.unit.votes.simulated import simulate, votes_of


def test_it_is_better_than_the_majority_where_a_third_answers_at_random():
    truth = simulate(500, n_annotators=20, spammers=0.35, ties=False)
    found = dawid_skene(truth.votes)
    right = (found["p_a"] > found["p_b"]).to_numpy() == (truth.d > 0)
    signs = truth.votes["choice"].map({"a": 1, "b": -1})
    majority = signs.groupby(truth.votes["comparison_id"]).sum().to_numpy()
    assert right.mean() > ((majority > 0) == (truth.d > 0)).mean() + 0.01
    assert found[["p_a", "p_b", "p_neither"]].sum(axis=1).to_numpy() == pytest.approx(1.0)


def test_the_order_of_votes_is_irrelevant():
    votes = simulate(50).votes
    pd.testing.assert_frame_equal(dawid_skene(votes), dawid_skene(votes.sample(frac=1.0, random_state=2)), check_exact=True)


def test_an_answer_that_nobody_gave_has_no_chance():
    found = dawid_skene(votes_of([0, 0, 1], [0, 1, 0], ["a", "a", "b"]))
    assert np.all(found["p_neither"] == 0.0)
    assert found["n_votes"].tolist() == [2, 1]


def test_without_judgements_it_says_so():
    with pytest.raises(NotEnoughVotes):
        dawid_skene(votes_of([0], [0], ["skip"]))
