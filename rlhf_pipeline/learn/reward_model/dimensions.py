"""Fits a linear head for each dimension of the rubric, and measures it on held-out votes.

The heads learn from the same features as the reward model, by the same penalised cross-entropy. So
a head is as good as the votes in its dimension: annotators who give every dimension the side that
they chose make all heads alike.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhf_pipeline.core.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import DimensionHead, Interval
from rlhf_pipeline.feedback.votes.ceilings import ceiling_of_counts
from rlhf_pipeline.feedback.votes.preference_pairs import read_dimension_votes
from rlhf_pipeline.learn.reward_model.base import Floats, RewardModel, both_sides
from rlhf_pipeline.learn.reward_model.evaluation import wins
from rlhf_pipeline.learn.reward_model.heads import HeadProblem, choose_l2, fit_head

HEAD_OF = "dimension."  # prefix of a head in the model's file


def fit_dimension_heads(
    pairs: pd.DataFrame, problem: HeadProblem, l2_grid: Sequence[float], n_folds: int, least: int
) -> dict[str, Floats]:
    """The weights (d,) by dimension that at least `least` of the `pairs` are judged in, on the
    differences and penalties of `problem`, which has a row per pair.

    Each pair counts by its `weight` and its votes in the dimension. The L2 is chosen by
    cross-validation over prompts, so a dimension judged on one prompt alone has no head.
    """
    heads = {}
    for name, pair_votes in read_dimension_votes(pairs).groupby("dimension", sort=True):
        groups = group_index(pair_votes["prompt_id"].to_numpy(), len(pair_votes))
        if len(pair_votes) < least or groups.max() < 1:
            continue
        rows = pair_votes["row"].to_numpy()
        votes = pair_votes["n"].to_numpy(dtype=np.float64)
        own = HeadProblem(
            problem.differences[rows],
            pair_votes["n_chosen"].to_numpy(dtype=np.float64) / votes,
            pairs["weight"].to_numpy(dtype=np.float64)[rows] * votes,
            problem.penalty,
        )
        losses = choose_l2(own, groups, l2_grid, n_folds)
        heads[str(name)] = fit_head(own, min(losses, key=lambda l2: (losses[l2], -l2)))[0]
    return heads


def measure_dimension_heads(
    model: RewardModel,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    params: BootstrapParams | None = None,
    *,
    progress: Progress = ignore_progress,
) -> tuple[DimensionHead, ...]:
    """Every dimension that votes on the PREFERENCE_PAIRS `train` or `held_out` judge, with the
    accuracy of the head on `held_out`, pairs that `model` was not fitted to. Sorted by name.
    """
    train_votes, test_votes = read_dimension_votes(train), read_dimension_votes(held_out)
    both = pd.concat([train_votes, test_votes]) if len(test_votes) else train_votes
    if both.empty:
        return ()
    rows = np.unique(test_votes["row"].to_numpy(dtype=np.int64))
    scores = model.dimension_scores(*both_sides(held_out.iloc[rows]), progress=progress)
    heads = []
    for name, votes in both.groupby("dimension", sort=True):
        own = test_votes[test_votes["dimension"] == name]
        accuracy = None
        if name in scores and len(own):
            chosen, rejected = np.split(scores[name], 2)
            margins = (chosen - rejected)[np.searchsorted(rows, own["row"])]
            accuracy = _measure_accuracy(own, margins, params)
        heads.append(
            DimensionHead(
                dimension=str(name),
                n_train=int((train_votes["dimension"] == name).sum()),
                has_head=name in scores,
                vote_accuracy=accuracy,
                ceiling=ceiling_in_dimension(votes, params),
            )
        )
    return tuple(heads)


def _measure_accuracy(
    pair_votes: pd.DataFrame, margins: Floats, params: BootstrapParams | None
) -> Interval:
    """Share of the votes that `margins` (n,) toward the chosen completion predict."""
    n_votes = pair_votes["n"].to_numpy(dtype=np.float64)
    share, right = pair_votes["n_chosen"].to_numpy(dtype=np.float64) / n_votes, wins(margins)
    accuracy = interval_of_mean(
        right * share + (1 - right) * (1 - share),
        groups=pair_votes["prompt_id"].to_numpy(),
        weights=n_votes,
        params=params,
    )
    return accuracy.model_copy(update={"n": int(n_votes.sum())})


def ceiling_in_dimension(
    pair_votes: pd.DataFrame, params: BootstrapParams | None
) -> Interval | None:
    """Noise ceiling of the votes of one dimension, rows of `read_dimension_votes`; None where no
    pair has two.
    """
    counts = pair_votes[pair_votes["n"] >= 2].rename(columns={"n_chosen": "n_a"})
    return ceiling_of_counts(counts, params)
