"""A linear Bradley-Terry head on feature differences. Knows arrays; knows no texts and no encoder.

Convex with L2 under every loss, so the weights do not depend on where the search starts, and a warm
start only saves steps. No intercept: swapping both completions negates the margin, and the two
probabilities sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import NotEnoughData, TrainingFailed
from rlhf_pipeline.reward_model.losses import (
    FIRST_LOG_TIE_WIDTH,
    LossParams,
    Targets,
    pair_losses,
    slopes,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeadProblem:
    """Differences chosen - rejected (n, d), what is to be said of them (n,), the weight of each
    pair (n,), the relative penalty of each feature (d,), and the loss."""

    differences: Floats
    targets: Targets
    weights: Floats
    penalty: Floats
    loss: LossParams = field(default_factory=LossParams)

    def select(self, mask: npt.NDArray[np.bool_]) -> "HeadProblem":
        return HeadProblem(
            self.differences[mask],
            self.targets.select(mask),
            self.weights[mask],
            self.penalty,
            self.loss,
        )

    def mean_loss(self, head: "Head") -> float:
        """Weighted mean loss in nats, without the penalty."""
        losses = pair_losses(
            self.differences @ head.weights,
            self.targets,
            self.loss,
            log_tie_width=head.log_tie_width,
        )
        return float(self.weights @ losses / self.weights.sum())


@dataclass(frozen=True)
class Head:
    """What was learnt: the weight of each feature (d,), and under davidson the logarithm of the tie
    width.
    """

    weights: Floats
    log_tie_width: float | None = None


def fit_head(
    problem: HeadProblem, l2: float, *, start: Floats | None = None, tolerance: float = 1e-7
) -> tuple[Head, list[float]]:
    """The head that minimises mean loss + l2/2 · Σ penalty·weights², and the objective after each
    step.

    Raises NotEnoughData where no pair has a weight, TrainingFailed where the search does not
    converge.
    """
    from scipy.optimize import minimize

    if not problem.weights.sum() > 0:
        raise NotEnoughData(
            "No pair has a weight: all are ties, which only the loss davidson learns from. Collect "
            "votes for a side."
        )
    share_of_weight = problem.weights / problem.weights.sum()
    penalty, n = l2 * problem.penalty, problem.differences.shape[1]
    has_width = problem.loss.loss == "davidson"

    def objective(x: Floats) -> tuple[float, Floats]:
        head, width = x[:n], float(x[n]) if has_width else None
        margins = problem.differences @ head
        value = (
            share_of_weight
            @ pair_losses(margins, problem.targets, problem.loss, log_tie_width=width)
            + 0.5 * penalty @ head**2
        )
        by_margin, by_width = slopes(margins, problem.targets, problem.loss, log_tie_width=width)
        slope = problem.differences.T @ (share_of_weight * by_margin) + penalty * head
        return float(value), np.append(slope, share_of_weight @ by_width) if has_width else slope

    first = np.zeros(n) if start is None else start
    if has_width:
        first = np.append(first, FIRST_LOG_TIE_WIDTH)
    curve = [objective(first)[0]]
    # Where nobody said tie the best width is 0: its logarithm stays here.
    bounds = [*[(None, None)] * n, (-20.0, 20.0)] if has_width else None
    result = minimize(
        objective,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=lambda intermediate_result: curve.append(float(intermediate_result.fun)),
        options={"maxiter": 2000, "maxfun": 5000, "ftol": 1e-14, "gtol": tolerance, "maxcor": 20},
    )
    if not np.isfinite(result.fun) or (result.status == 1):
        raise TrainingFailed(
            f"The head did not converge in {result.nit} steps (L2 {l2}): {result.message}. Raise "
            "the smallest L2 of l2_grid."
        )
    found = np.asarray(result.x, dtype=np.float64)
    return Head(found[:n], float(found[n]) if has_width else None), curve


def choose_l2(
    problem: HeadProblem, groups: npt.NDArray[np.int64], grid: Sequence[float], n_folds: int
) -> dict[float, float]:
    """Held-out loss of each L2 by cross-validation over groups (prompts): the smallest is the one
    to take.

    Groups go to folds in order of their number. Raises NotEnoughData with fewer groups than folds.
    """
    fold = groups % n_folds
    if len(np.unique(groups)) < n_folds:
        raise NotEnoughData(
            f"{len(np.unique(groups))} prompts for {n_folds} folds. Collect votes on more prompts "
            "or lower folds."
        )
    held_out = {l2: 0.0 for l2 in grid}
    for k in range(n_folds):
        inside, outside = problem.select(fold != k), problem.select(fold == k)
        if not outside.weights.sum() > 0:  # nothing but ties
            continue
        start: Floats | None = None
        for l2 in sorted(grid, reverse=True):  # each solution starts the next, weaker penalty
            head, _ = fit_head(inside, l2, start=start, tolerance=1e-4)
            start = head.weights
            held_out[l2] += outside.mean_loss(head) * outside.weights.sum() / problem.weights.sum()
    return held_out
