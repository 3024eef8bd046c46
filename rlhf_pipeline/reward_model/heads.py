"""Fits linear Bradley-Terry heads on feature differences, and ensembles of them.

With L2, a head's objective is convex under every loss, so the weights do not depend on the starting
point, and a warm start only saves steps. A head has no intercept: swapping both completions negates
the margin, and the two probabilities sum to 1.

Each further member is fitted on prompts drawn with replacement (Breiman 1996), so members disagree
where the outcome depends on which votes were seen. With head `mlp` a hidden layer corrects each
linear head: its output starts at 0, so early stopping falls back to the linear head if nothing is
gained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import ModelError, NotEnoughData, TrainingFailed
from rlhf_pipeline.reward_model.losses import (
    FIRST_LOG_TIE_WIDTH,
    LossParams,
    Targets,
    pair_losses,
    slopes,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HIDDEN_PARTS = ("hidden", "hidden_bias", "hidden_out")
BATCH = 256
WEIGHT_DECAY = 0.05
STOP_AFTER = 4  # epochs without improvement on the held-out prompts


@dataclass(frozen=True)
class HeadProblem:
    """Differences chosen - rejected (n, d), their targets (n,), the weight of each pair (n,), the
    relative penalty of each feature (d,), and the loss.
    """

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
    """A learned head: the weight of each feature (d,), and under davidson the logarithm of the tie
    width.
    """

    weights: Floats
    log_tie_width: float | None = None


def fit_head(
    problem: HeadProblem, l2: float, *, start: Floats | None = None, tolerance: float = 1e-7
) -> tuple[Head, list[float]]:
    """Minimise mean loss + l2/2 · Σ penalty·weights²; return the head and the objective after each
    step.

    Raises NotEnoughData if no pair has a positive weight, TrainingFailed if the search does not
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
    # Without any tie the best width is 0; the bound keeps its logarithm finite.
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
            start = head.weights
            held_out[l2] += outside.mean_loss(head) * outside.weights.sum() / problem.weights.sum()
    return held_out


class HeadParams(BaseModel):
    """The type of head and the number of members."""

    model_config = ConfigDict(allow_inf_nan=False)

    head: Literal["linear", "mlp"] = Field(
        default="linear", description="linear, or linear with a hidden layer that corrects it"
    )
    n_members: int = Field(
        default=1,
        ge=1,
        le=50,
        description="Heads whose mean is the score; from 2 on each on prompts drawn anew, and "
        "their disagreement is known",
    )
    hidden: int = Field(
        default=32, ge=1, le=4096, description="Units of the hidden layer of head mlp"
    )
    mlp_epochs: int = Field(
        default=30,
        ge=1,
        le=1000,
        description="Most passes of head mlp; it stops where held-out prompts gain no more",
    )
    mlp_learning_rate: float = Field(default=1e-3, gt=0, le=1, description="AdamW's, of head mlp")
    seed: int = Field(
        default=0, ge=0, description="Seed of the members' prompts and of the hidden layer's start"
    )


@dataclass(frozen=True)
class Heads:
    """Weights of the members: linear (m, d); with a hidden layer of h units also hidden (m, h, d),
    its bias (m, h) and out (m, h).
    """

    linear: Floats
    hidden: Floats | None = None
    bias: Floats | None = None
    out: Floats | None = None

    def __len__(self) -> int:
        return len(self.linear)

    def scores(self, features: Floats) -> Floats:
        """Scores (n, m) of standardised `features` (n, d)."""
        scores = features @ self.linear.T
        if self.hidden is None or self.bias is None or self.out is None:
            return np.asarray(scores)
        corrections = [
            np.maximum(features @ weights.T + bias, 0) @ out
            for weights, bias, out in zip(self.hidden, self.bias, self.out, strict=True)
        ]
        return np.asarray(scores + np.stack(corrections, axis=1))

    def parts(self) -> dict[str, Floats]:
        """Arrays by the names they are saved under; a single linear head is saved as one vector."""
        parts = {"head": self.linear[0] if len(self.linear) == 1 else self.linear}
        if self.hidden is not None and self.bias is not None and self.out is not None:
            parts |= dict(zip(HIDDEN_PARTS, (self.hidden, self.bias, self.out), strict=True))
        return parts

    @classmethod
    def from_parts(cls, parts: Mapping[str, Floats], d: int) -> "Heads":
        """Rebuild heads for `d` features from the output of `parts`. Raises ModelError if the
        shapes do not match.
        """
        linear = np.atleast_2d(parts["head"])
        hidden, bias, out = (parts.get(name) for name in HIDDEN_PARTS)
        fits = linear.shape[1] == d
        if hidden is not None and bias is not None and out is not None:
            fits &= hidden.shape == (
                len(linear),
                bias.shape[-1],
                d,
            ) and bias.shape == out.shape == (len(linear), hidden.shape[1])
        if not fits:
            raise ModelError(
                f"The heads' shapes do not fit {d} features. The file is damaged or of another "
                "encoder; fit the model again."
            )
        return cls(linear, hidden, bias, out)


def fit_heads(
    problem: HeadProblem,
    sides: tuple[Floats, Floats],
    groups: Ints,
    params: HeadParams,
    l2: float,
    n_folds: int,
    *,
    start: Floats | None = None,
) -> tuple[Heads, float | None, list[float]]:
    """Fit the members; return them, the mean logarithm of their tie width (davidson), and the
    objective after each step of the head on all pairs.

    `sides` are the standardised features of the chosen and the rejected completions (n, d);
    `groups` (n,) numbers the prompts. The same arguments give the same heads.
    """
    whole, curve = fit_head(problem, l2, start=start)
    members: list[tuple[Head, HeadProblem]] = [(whole, problem)]
    if params.n_members > 1:
        drawn = [
            replace(problem, weights=problem.weights * _draw_counts(groups, params.seed, k))
            for k in range(params.n_members)
        ]
        members = [(fit_head(p, l2, start=whole.weights)[0], p) for p in drawn]
    linear = np.stack([head.weights for head, _ in members])
    widths = [head.log_tie_width for head, _ in members if head.log_tie_width is not None]
    width = float(np.mean(widths)) if widths else None
    if params.head == "linear":
        return Heads(linear), width, curve
    layers = [
        _fit_correction(
            head, p, sides, (groups % n_folds) == k % n_folds, params, seed=[params.seed, k]
        )
        for k, (head, p) in enumerate(members)
    ]
    return Heads(linear, *(np.stack(part) for part in zip(*layers, strict=True))), width, curve


def _draw_counts(groups: Ints, seed: int, member: int) -> Floats:
    """How often each row's group is drawn; there are as many draws as groups."""
    n_groups = int(groups.max()) + 1
    drawn = np.random.default_rng([seed, member]).integers(0, n_groups, n_groups)
    return np.bincount(drawn, minlength=n_groups).astype(np.float64)[groups]


def _fit_correction(
    head: Head,
    problem: HeadProblem,
    sides: tuple[Floats, Floats],
    is_held_out: npt.NDArray[np.bool_],
    params: HeadParams,
    *,
    seed: list[int],
) -> tuple[Floats, Floats, Floats]:
    """Fit a hidden layer and return its weights (h, d), bias (h,) and out (h,) from the epoch that
    predicts the held-out prompts best; out is 0 if no epoch improves.
    """
    import torch

    n_threads = torch.get_num_threads()
    # The split of a sum over threads changes its last digits; one thread makes the same seed give
    # the same weights.
    torch.set_num_threads(1)
    try:
        return _train(head, problem, sides, is_held_out, params, seed)
    finally:
        torch.set_num_threads(n_threads)


def _train(
    head: Head,
    problem: HeadProblem,
    sides: tuple[Floats, Floats],
    is_held_out: npt.NDArray[np.bool_],
    params: HeadParams,
    seed: list[int],
) -> tuple[Floats, Floats, Floats]:
    import torch

    rng, d = np.random.default_rng(seed), problem.differences.shape[1]
    chosen, rejected = (torch.as_tensor(side, dtype=torch.float32) for side in sides)
    base = torch.as_tensor(problem.differences @ head.weights, dtype=torch.float32)
    targets = problem.targets.to_torch()
    weights = torch.as_tensor(problem.weights / problem.weights.mean(), dtype=torch.float32)
    layer = torch.tensor(
        rng.normal(0, 1 / np.sqrt(d), (params.hidden, d)), dtype=torch.float32, requires_grad=True
    )
    bias = torch.zeros(params.hidden, requires_grad=True)
    out = torch.zeros(params.hidden, requires_grad=True)
    optimiser = torch.optim.AdamW(
        [layer, bias, out], lr=params.mlp_learning_rate, weight_decay=WEIGHT_DECAY
    )

    def loss(rows: Ints) -> Any:
        pick = torch.as_tensor(rows)
        seen = [torch.relu(side[pick] @ layer.T + bias) @ out for side in (chosen, rejected)]
        each = pair_losses(
            base[pick] + seen[0] - seen[1],
            targets.select(pick),
            problem.loss,
            log_tie_width=head.log_tie_width,
        )
        return (each * weights[pick]).mean()

    inside = np.flatnonzero(~is_held_out & (problem.weights > 0))
    outside = np.flatnonzero(is_held_out & (problem.weights > 0))
    best, since = float("inf"), 0
    kept = tuple(part.detach().clone() for part in (layer, bias, out))
    for _ in range(params.mlp_epochs if len(inside) and len(outside) else 0):
        with torch.no_grad():
            now = float(loss(outside))
        if now < best - 1e-5:
            best = now
            since = 0
            kept = tuple(part.detach().clone() for part in (layer, bias, out))
        else:
            since += 1
        if since >= STOP_AFTER:
            break
        order = rng.permutation(inside)
        for first in range(0, len(order), BATCH):
            optimiser.zero_grad()
            loss(order[first : first + BATCH]).backward()
            optimiser.step()
    weights_, bias_, out_ = (part.numpy().astype(np.float64) for part in kept)
    return weights_, bias_, out_
