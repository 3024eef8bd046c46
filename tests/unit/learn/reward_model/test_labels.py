import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import FrameError, NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, SOFT_LABELS, check_frame
from rlhf_pipeline.learn.reward_model import LearningData, fit_reward_model, reward_model_params
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.losses import (
    join_soft_labels,
    targets_of,
    vote_weights,
)
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.03], "context_penalty_grid": [3.0]}


def soft_labels(pairs: pd.DataFrame, p_chosen: float) -> pd.DataFrame:
    p_a = np.where(pairs["chosen_side"] == "a", p_chosen, 1 - p_chosen)
    frame = pairs[["comparison_id", "prompt_id"]].assign(
        utility=0.0, sd=1.0, p_a=p_a, p_low=0.0, p_high=1.0, n_votes=3, max_seq=1
    )
    return check_frame(frame, SOFT_LABELS)


def test_frames_without_soft_labels_are_valid():
    old = make_pairs(4).drop(columns=["soft_label", "n_ties"])
    checked = check_frame(old, PREFERENCE_PAIRS)
    assert checked["soft_label"].isna().all()
    with pytest.raises(NotEnoughData, match="soft label"):
        targets_of(old, "annotators")


def test_a_soft_label_is_that_of_the_chosen_side():
    pairs = make_pairs(20)
    joined = join_soft_labels(pairs, soft_labels(pairs, 0.7))
    np.testing.assert_allclose(joined["soft_label"], 0.7)
    np.testing.assert_allclose(targets_of(joined, "annotators"), 0.7)
    assert set(pairs["chosen_side"]) == {"a", "b"}


def test_a_pair_that_lacks_its_soft_label_is_named():
    pairs = make_pairs(6)
    joined = join_soft_labels(pairs, soft_labels(pairs, 0.7).iloc[1:])
    with pytest.raises(FrameError, match=r"1 of 6 pairs have no soft label, first c0-00000"):
        targets_of(joined, "annotators")


def test_labels_and_weights_of_votes_majorities_and_ties():
    pairs = make_pairs(3).assign(agreement=[0.6, 1.0, 0.5], n_votes=[5, 3, 0], n_ties=[5, 0, 4])
    assert targets_of(pairs, "votes").tolist() == [0.6, 1.0, 0.5]
    assert targets_of(pairs, "majority").tolist() == [1.0, 1.0, 0.5]
    assert vote_weights(pairs, "votes").tolist() == [5.0, 3.0, 0.0]
    assert vote_weights(pairs, "annotators").tolist() == [10.0, 3.0, 4.0]
    assert vote_weights(pairs, "majority").tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("label", ["votes", "majority"])
def test_every_label_kind_learns_and_is_reproducible(label):
    pairs = make_pairs(300).assign(n_ties=1)
    params = EmbeddingParams(label=label, **FEW)
    model = EmbeddingRewardModel(params, WordEncoder()).fit(pairs)
    liked, disliked = model.score(["q"] * 2, ["kind right", "curt wrong"])
    assert liked > disliked + 0.5
    assert (
        EmbeddingRewardModel(params, WordEncoder()).fit(pairs.iloc[::-1]).weights_hash
        == model.weights_hash
    )


def test_a_model_of_soft_labels_reproduces_them():
    pairs = make_pairs(600)
    sure = fit_reward_model(
        LearningData(pairs, soft_labels=soft_labels(pairs, 0.95)),
        reward_model_params(label="annotators", **FEW),
        encoder=WordEncoder(),
    )
    unsure = fit_reward_model(
        LearningData(pairs, soft_labels=soft_labels(pairs, 0.55)),
        reward_model_params(label="annotators", **FEW),
        encoder=WordEncoder(),
    )
    assert sure.report.label == "annotators"
    assert unsure.model.score_std_ < 0.5 * sure.model.score_std_
    by_votes = fit_reward_model(
        LearningData(pairs, soft_labels=soft_labels(pairs, 0.95)),
        reward_model_params(**FEW),
        encoder=WordEncoder(),
    )
    assert (
        by_votes.report.data_hash
        == fit_reward_model(
            LearningData(pairs), reward_model_params(**FEW), encoder=WordEncoder()
        ).report.data_hash
    )


def test_soft_label_model_records_the_seen_votes():
    """The annotator model hears repeats and other comparisons too: predictions of those would be no
    predictions.
    """
    pairs = make_pairs(60)
    last, later = int(pairs["max_seq"].max()), soft_labels(pairs, 0.7).assign(max_seq=900)
    learning = reward_model_params(label="annotators", **FEW)
    assert (
        fit_reward_model(
            LearningData(pairs, soft_labels=later), learning, encoder=WordEncoder()
        ).report.max_seq
        == 900
    )
    assert (
        fit_reward_model(
            LearningData(pairs, soft_labels=later.assign(max_seq=1)),
            learning,
            encoder=WordEncoder(),
        ).report.max_seq
        == last
    )
    # Of labels that came with the pairs, as `rlhf votes prepare` writes them; of frames from before
    # it was kept, the pairs' own.
    joined = join_soft_labels(pairs, later)
    assert (
        fit_reward_model(LearningData(joined), learning, encoder=WordEncoder()).report.max_seq
        == 900
    )
    assert (
        fit_reward_model(
            LearningData(joined.drop(columns="label_seq")), learning, encoder=WordEncoder()
        ).report.max_seq
        == last
    )
    # Labels that nobody learnt from are no knowledge.
    assert (
        fit_reward_model(
            LearningData(joined), reward_model_params(**FEW), encoder=WordEncoder()
        ).report.max_seq
        == last
    )


def test_labels_that_rest_on_later_votes_are_refused():
    pairs = make_pairs(20)
    labels = soft_labels(pairs, 0.7).assign(max_seq=60)
    assert join_soft_labels(pairs, labels, up_to_seq=60)["soft_label"].notna().all()
    with pytest.raises(
        FrameError,
        match=r"rest on votes up to seq 60, but only votes up to seq 59 .* with up_to_seq 59",
    ):
        join_soft_labels(pairs, labels, up_to_seq=59)
    with pytest.raises(FrameError, match="rest on votes up to seq 900"):
        fit_reward_model(
            LearningData(pairs, soft_labels=labels.assign(max_seq=900), up_to_seq=60),
            reward_model_params(label="annotators", **FEW),
            encoder=WordEncoder(),
        )
