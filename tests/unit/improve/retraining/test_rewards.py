import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughVotes
from rlhf_pipeline.improve.retraining.online import (
    STORED,
    clean_text,
    make_trl_reward,
    select_prompts,
)
from rlhf_pipeline.improve.retraining.rewards import (
    CalibratedReward,
    score_members,
    score_with_deviation,
)
from rlhf_pipeline.learn.calibration import calibrator_from_json


class Lengths:
    """A stand-in for a reward model of two members."""

    weights_hash = "lengths"

    def member_scores(self, prompts, completions):
        lengths = np.array([float(len(text)) for text in completions])
        return np.stack([lengths, lengths + 2])


def test_a_calibrated_reward_is_in_nats_and_keeps_the_members():
    raw = CalibratedReward(Lengths())
    np.testing.assert_allclose(raw.member_scores(["p"] * 2, ["a", "abc"]), [[1, 3], [3, 5]])
    halved = CalibratedReward(
        Lengths(), calibrator_from_json({"method": "temperature", "temperature": 2.0})
    )
    np.testing.assert_allclose(halved.member_scores(["p"], ["abcd"]), [[2], [3]])
    assert halved.weights_hash != raw.weights_hash


def test_saturated_members_still_disagree():
    rewards, deviations = score_with_deviation(CalibratedReward(Lengths()), ["p"], ["a" * 5000])
    assert rewards == CalibratedReward(Lengths()).member_scores(["p"], ["a" * 5000]).mean()
    assert deviations == [1.0]


def test_reward_function_accepts_messages_and_texts_of_trl():
    reward = make_trl_reward(Lengths())
    messages = [[{"role": "assistant", "content": " abc\0 "}]]
    stored = {STORED: ["p"]}
    chat = [[{"role": "user", "content": "p"}]]
    assert reward(prompts=chat, completions=messages, trainer_state=None, **stored) == [4.0]
    assert reward(prompts=["p"], completions=["abc"], **stored) == [4.0]
    assert clean_text(" a\0b ") == "ab"


def test_a_broken_reward_names_the_completion():
    class Broken(Lengths):
        def member_scores(self, prompts, completions):
            return np.array([[1.0, np.nan]])

    with pytest.raises(InvalidScores, match="first of 'second'"):
        score_members(Broken(), ["p", "p"], ["first", "second"])
    with pytest.raises(InvalidScores, match=r"shape \(1, 2\) for 3"):
        score_members(Broken(), ["p"] * 3, ["a", "b", "c"])


def test_each_prompt_is_sampled_once_with_its_largest_weight():
    pairs = pd.DataFrame(
        {
            "comparison_id": ["c2", "c1", "c3"],
            "prompt_id": ["p1", "p1", "p2"],
            "prompt": ["one", "one", "two"],
            "weight": [0.5, 1.0, 0.25],
            "difficulty": [0.2, 0.4, 0.9],
        }
    )
    prompts = select_prompts(pairs)
    assert prompts["difficulty"].round(9).tolist() == [0.3, 0.9]
    assert prompts["comparison_id"].tolist() == ["c1", "c3"]
    assert prompts["weight"].tolist() == [1.0, 0.25]
    with pytest.raises(NotEnoughVotes, match="1 prompt in the retraining set"):
        select_prompts(pairs[:2])
