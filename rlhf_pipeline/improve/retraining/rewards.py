"""Scores completions while a policy trains: the reward of online strategies and of sentinels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlhf_pipeline.core.errors import InvalidScores, ModelNotFound
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.calibration import Calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model.base import Floats, RewardModel

# Beyond 99.9 % a calibrator has seen no votes; 6.9 logits are enough to rank completions.
MAX_PROBABILITY = 0.999


class RewardFunction(Protocol):
    """What a policy is trained to please. Every RewardModel is one; a function of one's own takes
    part in training the same way.
    """

    @property
    def weights_hash(self) -> str:
        """Identifies the function: equal hashes give equal scores. It is part of the lineage."""

    def member_scores(self, prompts: Sequence[str], completions: Sequence[str], /) -> Floats:
        """Scores (members, n) of each completion for its prompt; their mean is the reward."""


@dataclass(frozen=True)
class CalibratedReward:
    """The calibrated log odds that people prefer a completion to the average one.

    Scores of a reward model are centred on its training completions, so the margin over the average
    completion is the score itself. Calibration gives the rewards one unit, nats, whatever the kind
    of reward model: the KL penalty is in nats too.
    """

    model: RewardModel
    calibrator: Calibrator | None = None

    @property
    def weights_hash(self) -> str:
        return content_hash(self.model.weights_hash, (self.calibrator or NoCalibration()).to_json())

    def member_scores(self, prompts: Sequence[str], completions: Sequence[str], /) -> Floats:
        return self.calibrate(self.model.member_scores(prompts, completions))

    def calibrate(self, scores: Floats) -> Floats:
        """The rewards of the model's own scores (members, n)."""
        p = (self.calibrator or NoCalibration()).transform(scores.ravel()).reshape(scores.shape)
        p = np.clip(p, 1 - MAX_PROBABILITY, MAX_PROBABILITY)
        return np.asarray(np.log(p) - np.log1p(-p))


def score_members(
    reward: RewardFunction, prompts: Sequence[str], completions: Sequence[str]
) -> Floats:
    """The member scores (members, n). Raises InvalidScores if their shape is another or one is not
    finite.
    """
    scores = np.asarray(reward.member_scores(prompts, completions), dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(completions):
        raise InvalidScores(
            f"The reward function returned scores of shape {scores.shape} for {len(completions)} "
            "completions; expected (members, completions). Correct its member_scores."
        )
    broken = np.flatnonzero(~np.isfinite(scores).all(axis=0))
    if len(broken):
        raise InvalidScores(
            f"The reward of {len(broken)} of {len(completions)} sampled completions is not finite, "
            f"first of {completions[broken[0]]!r:.60}. Fit the reward model again."
        )
    return scores


def score_with_deviation(
    reward: RewardFunction, prompts: Sequence[str], completions: Sequence[str]
) -> tuple[Floats, Floats | None]:
    """The mean reward (n,) of each completion and the standard deviation between its members, None
    for a single member. Of a calibrated reward it is that of the uncalibrated scores: rewards end
    at MAX_PROBABILITY, where members that disagree have the same.
    """
    if isinstance(reward, CalibratedReward):
        scores = score_members(reward.model, prompts, completions)
        rewards = reward.calibrate(scores)
    else:
        rewards = scores = score_members(reward, prompts, completions)
    deviations = scores.std(axis=0) if len(scores) > 1 else None
    return rewards.mean(axis=0), deviations


def require_reward(strategy: str, reward: RewardFunction | None) -> RewardFunction:
    """Return `reward`. Raises ModelNotFound without one, naming the `strategy`."""
    if reward is None:
        raise ModelNotFound(
            f"Strategy {strategy} trains on the scores of a reward model, and none serves yet. Run "
            "`rlhf run learning` once there are enough votes, or choose dpo, kto or sft, which "
            "train on the pairs alone."
        )
    return reward
