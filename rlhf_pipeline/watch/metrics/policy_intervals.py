"""Puts 95% intervals around the figures of the deployed policy on a day."""

import numpy as np

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.watch.drift.policy import PolicyDay, PromptMean

Z = 1.96  # of a 95% interval


def policy_interval(mean: PromptMean | None) -> Interval | None:
    """The mean with its 95% interval over prompts."""
    if mean is None:
        return None
    half = Z * float(np.sqrt(mean.variance / mean.n))
    return Interval(value=mean.mean, low=mean.mean - half, high=mean.mean + half, n=mean.n)


def refusal_interval(day: PolicyDay) -> Interval:
    """The share of refusals; of none, too, it is not certain that it is 0."""
    return interval_of_share(day.refused.mean, day.refused.n)
