"""Votes against an expert's decision give no pair; all others count as before."""

import pandas as pd

from rlhf_pipeline.feedback.votes.preference_pairs import make_pairs
from rlhf_pipeline.feedback.votes.teaching import TeachingRule, decide_labels
from tests.unit.feedback.votes.test_preference_pairs import comparisons, votes

SHOWN = comparisons("even", "lost", "tied", "plain")
CAST = votes(
    ("even", "ann", "a", 4), ("even", "bob", "b", 4),
    ("lost", "ann", "a", 2), ("lost", "bob", "a", 2), ("lost", "eve", "b", 3),
    ("tied", "ann", "a", 2), ("tied", "bob", "tie", None),
    ("plain", "ann", "b", 1), ("plain", "bob", "b", 3),
)  # fmt: skip


def test_a_pair_rests_on_the_votes_that_agree_with_the_decision() -> None:
    rule = TeachingRule(decided={"even": "b", "lost": "b", "tied": "tie"})
    pair_rows, counts = make_pairs(CAST, SHOWN, rule=rule)
    assert counts.n_overruled == 4
    pairs = pair_rows.set_index("comparison_id")
    assert pairs["chosen_side"].to_dict() == {"even": "b", "lost": "b", "plain": "b"}
    assert pairs.loc["lost", ["n_votes", "agreement", "margin"]].tolist() == [1, 1.0, 0.75]
    assert pairs.loc["plain", "n_votes"] == 2


def test_adjudication_replaces_the_annotator_models_label() -> None:
    labels = pd.DataFrame({"comparison_id": ["even", "lost", "tied", "plain"]})
    labels = labels.assign(p_a=[0.5, 0.8, 0.6, 0.2], p_low=0.1, p_high=0.9)
    decided = decide_labels(labels, {"even": "a", "lost": "b", "tied": "tie"})
    assert decided["p_a"].tolist() == [1.0, 0.0, 0.6, 0.2]
    assert decided["p_low"].tolist() == [1.0, 0.0, 0.1, 0.1]
    assert decide_labels(labels, {}).equals(labels)


def test_an_earlier_pass_does_not_count_again() -> None:
    twice = votes(("even", "ann", "a", 4), ("even", "ann", "b", 4))
    second = twice["seq"] == twice["seq"].max()
    twice["pass_no"] = second.astype("Int64") + 1
    assert make_pairs(twice, SHOWN, rule=TeachingRule(decided={"even": "a"}))[0].empty
