"""What is learnt of annotators, from votes as they were cast."""

import pandas as pd
import pytest

from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.feedback.votes.annotator_model import (
    fit_annotator_model,
    judged_comparison_ids,
    training_labels,
)
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.joint_model import joint_model
from rlhf_pipeline.feedback.votes.splits import splits_of
from tests.unit.feedback.votes.simulated import simulate, votes_of


def test_annotator_report_covers_all_votes_and_annotators():
    truth = simulate(80, n_annotators=8)
    learnt = fit_annotator_model(truth.votes, truth.comparisons)
    report = learnt.report()
    assert report.n_annotators == len(learnt.figures) == len(learnt.model.annotators) == 8
    assert report.n_comparisons == len(learnt.model.labels) == 80
    assert report.alpha is not None
    assert report.alpha.low < report.alpha.value < report.alpha.high
    assert report.agreement.n_votes == len(truth.votes)
    assert len(report.log_likelihoods) == report.n_iterations


def test_without_votes_there_is_no_annotator_model():
    with pytest.raises(NotEnoughVotes, match="No usable votes"):
        fit_annotator_model(votes_of([], 0, []), simulate(2).comparisons)


def test_last_pass_teaches_and_earlier_ones_measure_consistency():
    truth = simulate(60, n_annotators=8, ties=False, seed=4)
    first_pass = truth.votes.assign(pass_no=1)
    again = first_pass.head(40).assign(
        choice=first_pass["choice"].head(40).map({"a": "b", "b": "a"}),
        vote_id="again-" + first_pass["vote_id"].head(40),
        seq=first_pass["seq"].head(40) + 1000,
        pass_no=2,
    )
    log = pd.concat([again, first_pass], ignore_index=True)
    learnt, last = (fit_annotator_model(v, truth.comparisons) for v in (log, counting_votes(log)))
    pd.testing.assert_frame_equal(learnt.labels, last.labels, check_exact=True)
    assert learnt.alpha == last.alpha
    assert learnt.agreement.n_votes == last.agreement.n_votes == len(truth.votes)
    assert learnt.agreement.self_consistency is not None
    assert (learnt.agreement.self_consistency.value, last.agreement.self_consistency) == (0.0, None)
    assert (learnt.figures["n_again"].sum(), last.figures["n_again"].sum()) == (40, 0)
    pd.testing.assert_frame_equal(
        training_labels(log, truth.comparisons), learnt.labels, check_exact=True
    )


def test_open_votes_teach_but_can_be_left_out_of_figures():
    truth = simulate(60, n_annotators=6, ties=False, seed=5)
    is_open = truth.votes["annotator_id"].eq(truth.votes["annotator_id"].iloc[0])
    cast = truth.votes.assign(is_blind=(~is_open).astype("boolean"))
    every, blind = (
        fit_annotator_model(cast, truth.comparisons, blind_only=only) for only in (False, True)
    )
    pd.testing.assert_frame_equal(every.labels, blind.labels, check_exact=True)
    assert every.agreement.n_votes == len(cast)
    assert blind.agreement.n_votes == len(cast) - is_open.sum()
    assert (every.agreement.n_annotators, blind.agreement.n_annotators) == (6, 5)
    unknown = cast.assign(is_blind=pd.array([pd.NA] * len(cast), dtype="boolean"))
    known = fit_annotator_model(unknown, truth.comparisons, blind_only=True)
    assert known.agreement.n_votes == len(cast)


def test_judged_ids_include_the_original_of_a_repeat():
    votes = votes_of([3, 7], [0, 0], ["a", "b"]).assign(repeat_of=[None, "c00001"])
    assert judged_comparison_ids(votes) == ["c00001", "c00003", "c00007"]


def test_labels_exclude_test_votes_and_figures_use_all():
    truth = simulate(60, completions=3, n_annotators=8, seed=4)
    split = splits_of(truth.comparisons)
    assert {"train", "test"} <= set(split)
    in_test = truth.votes["comparison_id"].isin(
        truth.comparisons.loc[split == "test", "comparison_id"]
    )
    turned = (
        truth.votes["choice"]
        .map({"a": "b", "b": "a", "tie": "tie"})
        .where(in_test, truth.votes["choice"])
    )
    learnt, other = (
        fit_annotator_model(v, truth.comparisons)
        for v in (truth.votes, truth.votes.assign(choice=turned))
    )
    assert not set(learnt.labels["comparison_id"]) & set(
        truth.comparisons.loc[split == "test", "comparison_id"]
    )
    # whatever they say there
    pd.testing.assert_frame_equal(learnt.labels, other.labels, check_exact=True)
    pd.testing.assert_frame_equal(
        learnt.labels, training_labels(truth.votes, truth.comparisons), check_exact=True
    )
    assert learnt.figures["n_votes"].sum() == len(truth.votes)
    assert not learnt.figures["reliability"].equals(other.figures["reliability"])


def test_prompt_in_two_splits_does_not_leak_test_votes_into_train():
    truth = simulate(1, completions=4, n_annotators=4, votes_each=4)
    comparisons = truth.comparisons.assign(
        split=["train", "train", "train", "test", "test", "test"]
    )
    train_votes = truth.votes[
        truth.votes["comparison_id"].isin(
            comparisons.loc[comparisons["split"] == "train", "comparison_id"]
        )
    ]
    labels = training_labels(truth.votes, comparisons)
    assert labels["comparison_id"].tolist() == sorted(train_votes["comparison_id"].unique())
    pd.testing.assert_frame_equal(
        labels, joint_model(train_votes, comparisons).labels, check_exact=True
    )


def test_a_repeat_is_in_the_split_of_its_original():
    truth = simulate(3)
    comparisons = truth.comparisons.assign(split=["test", "train", "train"])
    again = votes_of([7], 0, ["b"]).assign(repeat_of="c00000", vote_id="again", seq=99)
    both = pd.concat([truth.votes, again], ignore_index=True)
    assert training_labels(both, comparisons)["n_votes"].sum() == len(truth.votes) - 5
