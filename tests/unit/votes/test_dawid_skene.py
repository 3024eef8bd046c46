"""Dawid and Skene's chances: who answers at random weighs little."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.votes.dawid_skene import DawidSkeneParams, dawid_skene
from tests.unit.votes.simulated import simulate, votes_of


def test_it_beats_the_majority_with_a_third_of_random_annotators():
    truth = simulate(500, n_annotators=20, spammers=0.35, ties=False)
    found = dawid_skene(truth.votes)
    right = (found["p_a"] > found["p_b"]).to_numpy() == (truth.d > 0)
    signs = truth.votes["choice"].map({"a": 1, "b": -1})
    majority = signs.groupby(truth.votes["comparison_id"]).sum().to_numpy()
    assert right.mean() > ((majority > 0) == (truth.d > 0)).mean() + 0.01
    assert found[["p_a", "p_b", "p_neither"]].sum(axis=1).to_numpy() == pytest.approx(1.0)


def accuracy(truth, params: DawidSkeneParams | None = None) -> float:
    """How often the better side of a comparison is named; undecided ones are half right."""
    found = dawid_skene(truth.votes, params)
    score = (found["p_a"] - found["p_b"]).to_numpy()
    return float(np.where(score == 0, 0.5, (score > 0) == (truth.d > 0)).mean())


def test_people_with_a_handful_of_votes_are_not_taken_at_their_word():
    """Fifteen votes a person and nine confusions to count in them."""
    gained = []
    for seed in range(3):
        truth = simulate(600, n_annotators=200, seed=seed)
        signs = (
            truth.votes["choice"]
            .map({"a": 1, "b": -1, "tie": 0})
            .groupby(truth.votes["comparison_id"])
            .sum()
            .to_numpy()
        )
        majority = float(np.where(signs == 0, 0.5, (signs > 0) == (truth.d > 0)).mean())
        gained.append(
            (accuracy(truth) - majority, accuracy(truth, DawidSkeneParams(n_imagined=0)) - majority)
        )
    shrunk, taken = np.mean(gained, axis=0)
    assert shrunk > -0.003
    assert taken < shrunk - 0.005


def test_imagined_answers_are_in_no_label():
    votes = simulate(20).votes
    found = dawid_skene(votes, DawidSkeneParams(n_imagined=3))
    assert found["comparison_id"].tolist() == sorted(votes["comparison_id"].unique())
    assert found["n_votes"].sum() == len(votes)


def test_the_order_of_votes_is_irrelevant():
    votes = simulate(50).votes
    pd.testing.assert_frame_equal(
        dawid_skene(votes), dawid_skene(votes.sample(frac=1.0, random_state=2)), check_exact=True
    )


def test_an_answer_that_nobody_gave_has_no_chance():
    found = dawid_skene(votes_of([0, 0, 1], [0, 1, 0], ["a", "a", "b"]))
    assert np.all(found["p_neither"] == 0.0)
    assert found["n_votes"].tolist() == [2, 1]


def test_without_judgements_it_is_an_error():
    with pytest.raises(NotEnoughVotes):
        dawid_skene(votes_of([0], [0], ["skip"]))
