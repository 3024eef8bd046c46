"""Fits linear Bradley-Terry heads on feature differences, and ensembles of them.

With L2, a head's objective is convex, so the weights do not depend on the starting point, and a
warm start only saves steps. A head has no intercept: swapping both completions negates the margin,
and the two probabilities sum to 1.

Each further member is fitted on prompts drawn with replacement (Breiman 1996), so members disagree
where the outcome depends on which votes were seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import NotEnoughData, TrainingFailed
from rlhf_pipeline.learn.reward_model.losses import pair_losses, slopes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeadProblem:
    """Differences chosen - rejected (n, d), their targets (n,), the weight of each pair (n,), and
    the relative penalty of each feature (d,).
    """

    differences: Floats
    targets: Floats
    weights: Floats
    penalty: Floats

    def select(self, mask: npt.NDArray[np.bool_]) -> "HeadProblem":
        return HeadProblem(
            self.differences[mask], self.targets[mask], self.weights[mask], self.penalty
        )

    def mean_loss(self, head: Floats) -> float:
        """Weighted mean loss in nats, without the penalty."""
        losses = pair_losses(self.differences @ head, self.targets)
        return float(self.weights @ losses / self.weights.sum())


def fit_head(
    problem: HeadProblem, l2: float, *, start: Floats | None = None, tolerance: float = 1e-7
) -> tuple[Floats, list[float]]:
    """Minimise mean loss + l2/2 · Σ penalty·weights²; return the weight of each feature (d,) and
    the objective after each step.

    Raises NotEnoughData if no pair has a positive weight, TrainingFailed if the search does not
    converge.
    """
    from scipy.optimize import minimize

    if not problem.weights.sum() > 0:
        raise NotEnoughData(
            "No pair has a weight: all are ties, which only the label annotators learns from. "
            "Collect votes for a side."
        )
    share_of_weight = problem.weights / problem.weights.sum()
    penalty = l2 * problem.penalty

    def objective(head: Floats) -> tuple[float, Floats]:
        margins = problem.differences @ head
        value = share_of_weight @ pair_losses(margins, problem.targets) + 0.5 * penalty @ head**2
        by_margin = slopes(margins, problem.targets)
        return float(value), problem.differences.T @ (share_of_weight * by_margin) + penalty * head

    first = np.zeros(problem.differences.shape[1]) if start is None else start
    curve = [objective(first)[0]]
    result = minimize(
        objective,
        first,
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: curve.append(float(intermediate_result.fun)),
        options={"maxiter": 2000, "maxfun": 5000, "ftol": 1e-14, "gtol": tolerance, "maxcor": 20},
    )
    if not np.isfinite(result.fun) or (result.status == 1):
        raise TrainingFailed(
            f"The head did not converge in {result.nit} steps (L2 {l2}): {result.message}. Raise "
            "the smallest L2 of l2_grid."
        )
    return np.asarray(result.x, dtype=np.float64), curve


def choose_l2(
    problem: HeadProblem, groups: npt.NDArray[np.int64], grid: Sequence[float], n_folds: int
) -> dict[float, float]:
    """Return the held-out loss of each L2 by cross-validation over groups (prompts); the caller
    takes the smallest.

    Groups go to folds in order of their number; with fewer groups than folds, each is a fold.
    Raises NotEnoughData for a single group.
    """
    n_folds = min(n_folds, len(np.unique(groups)))
    if n_folds < 2:
        raise NotEnoughData(
            "All pairs are of one prompt, so no prompt is left to choose the penalty by. Collect "
            "votes on more prompts."
        )
    fold = groups % n_folds
    held_out = {l2: 0.0 for l2 in grid}
    for k in range(n_folds):
        inside, outside = problem.select(fold != k), problem.select(fold == k)
        if not outside.weights.sum() > 0:  # only ties
            continue
        start: Floats | None = None
        for l2 in sorted(grid, reverse=True):  # each solution starts the next, weaker penalty
            head, _ = fit_head(inside, l2, start=start, tolerance=1e-4)
            start = head
            held_out[l2] += outside.mean_loss(head) * outside.weights.sum() / problem.weights.sum()
    return held_out


def fit_heads(
    problem: HeadProblem,
    groups: Ints,
    l2: float,
    *,
    n_members: int,
    seed: int,
    start: Floats | None = None,
) -> tuple[Floats, list[float]]:
    """Fit the members; return their weights (members, d), and the objective after each step of the
    head on all pairs.

    `groups` (n,) numbers the prompts. The same arguments give the same heads.
    """
    whole, curve = fit_head(problem, l2, start=start)
    if n_members == 1:
        return whole[None], curve
    resamples = [
        replace(problem, weights=problem.weights * _draw_counts(groups, seed, k))
        for k in range(n_members)
    ]
    return np.stack([fit_head(p, l2, start=whole)[0] for p in resamples]), curve


def _draw_counts(groups: Ints, seed: int, member: int) -> Floats:
    """How often each row's group is drawn; there are as many draws as groups."""
    n_groups = int(groups.max()) + 1
    draws = np.random.default_rng([seed, member]).integers(0, n_groups, n_groups)
    return np.bincount(draws, minlength=n_groups).astype(np.float64)[groups]
