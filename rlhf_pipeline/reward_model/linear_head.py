"""A linear Bradley-Terry head on feature differences. Knows arrays; knows no texts and no encoder.

Convex with L2, so the weights do not depend on where the search starts, and a warm start only saves steps. No
intercept: swapping both completions negates the margin, and the two probabilities sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import NotEnoughData, TrainingFailed

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Differences chosen - rejected (n, d), the share of votes for the chosen (n,), the weight of each pair (n,), and
    the relative penalty of each feature (d,)."""

    differences: Floats
    shares: Floats
    weights: Floats
    penalty: Floats

    def rows(self, mask: npt.NDArray[np.bool_]) -> "Problem":
        return Problem(self.differences[mask], self.shares[mask], self.weights[mask], self.penalty)

    def loss(self, head: Floats) -> float:
        """Weighted mean log loss of the votes, in nats, without the penalty."""
        return float(self.weights @ _losses(self.differences @ head, self.shares) / self.weights.sum())


def _losses(margins: Floats, shares: Floats) -> Floats:
    # -[s log p + (1 - s) log(1 - p)] with p = logistic(margin), written so that no margin overflows.
    return np.asarray(np.logaddexp(0.0, -margins) + (1 - shares) * margins)


def fit_head(problem: Problem, l2: float, *, start: Floats | None = None, tolerance: float = 1e-7) -> tuple[Floats, list[float]]:
    """The head (d,) that minimises mean loss + l2/2 · Σ penalty·head², and the objective after each step.

    Raises TrainingFailed where the search does not converge.
    """
    from scipy.optimize import minimize

    share_of_weight = problem.weights / problem.weights.sum()
    penalty = l2 * problem.penalty

    def objective(head: Floats) -> tuple[float, Floats]:
        margins = problem.differences @ head
        slope = 1 / (1 + np.exp(-np.clip(margins, -500, 500))) - problem.shares
        value = share_of_weight @ _losses(margins, problem.shares) + 0.5 * penalty @ head**2
        return float(value), problem.differences.T @ (share_of_weight * slope) + penalty * head

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
            f"The head did not converge in {result.nit} steps (L2 {l2}): {result.message}. Raise the smallest L2 of l2_grid."
        )
    return np.asarray(result.x, dtype=np.float64), curve


def choose_l2(problem: Problem, groups: npt.NDArray[np.int64], grid: Sequence[float], n_folds: int) -> dict[float, float]:
    """Held-out log loss of each L2 by cross-validation over groups (prompts): the smallest is the one to take.

    Groups go to folds in order of their number. Raises NotEnoughData with fewer groups than folds.
    """
    fold = groups % n_folds
    if len(np.unique(groups)) < n_folds:
        raise NotEnoughData(f"{len(np.unique(groups))} prompts for {n_folds} folds. Collect votes on more prompts or lower folds.")
    held_out = {l2: 0.0 for l2 in grid}
    for k in range(n_folds):
        inside, outside = problem.rows(fold != k), problem.rows(fold == k)
        head: Floats | None = None
        for l2 in sorted(grid, reverse=True):  # each solution starts the next, weaker penalty
            head, _ = fit_head(inside, l2, start=head, tolerance=1e-4)
            held_out[l2] += outside.loss(head) * outside.weights.sum() / problem.weights.sum()
    return held_out
