"""Corrects the scale and the widths of a joint model by refitting votes simulated from it.

Most annotators cast few votes. The fit shrinks them to the population, which pulls the typical
discrimination toward 0 and utilities away from it, and no standard error contains that. So votes
are simulated from the fitted population on the same comparisons and annotators, and fitted again (a
parametric bootstrap, Efron and Tibshirani 1993, section 6.5). What the refits miss of their own
truth is what the fit missed of the real one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.feedback.votes.completion_utilities import Utilities
from rlhf_pipeline.feedback.votes.expectation import BIAS, DISCRIMINATION, SCALE, WIDTH
from rlhf_pipeline.feedback.votes.judgements import JudgementArrays

Floats = npt.NDArray[np.float64]

# One refit alone would correct the scale by its own chance, and hide that chance from the widths.
LEAST_REFITS, MOST_REFITS = 4, 6
LEVEL = 0.95  # of all intervals of the model
N_VOTES = 12_500
LEAST_TYPICAL = 0.1  # of votes nearly at random, the scale has no meaning
LEAST_WIDTH = 0.95  # factor of a standard error: the simulated population is an estimate itself
SLOPES = np.linspace(-10.0, 10.0, 401)  # discriminations between which reliability is interpolated
FACTORS = (0.5, 2.0)  # bounds of the scale factors: refits of a hundred votes may be degenerate


class FittedVotes(Protocol):
    """The state of a fit: parameters of annotators (n, 4) and their population, and mean and
    variance of the difference of each comparison.
    """

    votes: JudgementArrays
    utilities: Utilities | None
    theta: Floats
    covariance: Floats
    mean: Floats
    spread: Floats
    steps: Floats
    is_free: npt.NDArray[np.bool_]
    d: tuple[Floats, Floats]

    @property
    def preference_sd(self) -> Floats: ...

    def reliability(self, slopes: Floats, utility: float) -> Floats: ...


@dataclass(frozen=True)
class Corrections:
    """Factors of discriminations and utilities, and further ones of the standard errors of
    utilities, of preferences in logits, and of discriminations, from which reliability follows.
    """

    discrimination: float = 1.0
    utility: float = 1.0
    utility_sd: float = 1.0
    preference_sd: float = 1.0
    discrimination_sd: float = 1.0


def measure_corrections(
    fit: FittedVotes,
    refit: Callable[[JudgementArrays, Utilities | None], FittedVotes],
) -> Corrections:
    """The corrections from refits of about N_VOTES simulated votes; deterministic.

    Factors of standard errors make intervals of LEVEL hold the simulated truth; none is below
    LEAST_WIDTH. Where the typical discrimination is below LEAST_TYPICAL, nothing is corrected.
    """
    typical = fit.mean[DISCRIMINATION]
    if typical < LEAST_TYPICAL:
        return Corrections()
    rng = np.random.default_rng(0)
    votes, utilities = _select_part(fit, N_VOTES, rng)
    n_refits = int(np.clip(np.ceil(N_VOTES / len(votes)), LEAST_REFITS, MOST_REFITS))
    refits = []
    for _ in range(n_refits):
        answers, d, theta = _simulate(fit, votes, utilities, rng)
        refits.append((refit(answers, utilities), d, theta[:, DISCRIMINATION]))
    ratios = [typical / max(refit.mean[DISCRIMINATION], 1e-9) for refit, _, _ in refits]
    scale = float(np.exp(np.mean(np.log(np.clip(ratios, *FACTORS)))))
    estimates = np.concatenate([refit.d[0] for refit, _, _ in refits])
    truth = np.concatenate([d for _, d, _ in refits])
    utility = _bounded(float(estimates @ truth / max(estimates @ estimates, 1e-9)))

    def widen(errors: list[Floats]) -> float:
        """The factor that makes standardised errors lie within the interval in LEVEL of cases."""
        z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
        return max(LEAST_WIDTH, float(np.quantile(np.abs(np.concatenate(errors)), LEVEL)) / z)

    return Corrections(
        discrimination=scale,
        utility=utility,
        utility_sd=widen(
            [(d - utility * refit.d[0]) / (utility * np.sqrt(refit.d[1])) for refit, d, _ in refits]
        ),
        preference_sd=widen(
            [
                (typical * d / (scale * utility) - refit.mean[DISCRIMINATION] * refit.d[0])
                / refit.preference_sd
                for refit, d, _ in refits
            ]
        ),
        discrimination_sd=widen(
            [
                (
                    _equivalent_slopes(refit, d, true_slopes, utility) / scale
                    - refit.theta[:, DISCRIMINATION]
                )
                / np.sqrt(refit.covariance[:, DISCRIMINATION, DISCRIMINATION])
                for refit, d, true_slopes in refits
            ]
        ),
    )


def _equivalent_slopes(
    refit: FittedVotes, d: Floats, true_slopes: Floats, utility: float
) -> Floats:
    """The discriminations (annotators,) at which the refit states the reliability that
    `true_slopes` have on the true differences `d`. So the widths contain what a few completions
    leave open of how far apart comparisons are.
    """
    from scipy.special import expit

    truth = expit(np.abs(d)[:, None] * SLOPES).mean(axis=0)
    stated = refit.reliability(SLOPES, utility)
    return np.asarray(np.interp(np.interp(true_slopes, SLOPES, truth), stated, SLOPES))


def _bounded(factor: float) -> float:
    return float(np.clip(factor, *FACTORS))


def _select_part(
    fit: FittedVotes, n_votes: int, rng: np.random.Generator
) -> tuple[JudgementArrays, Utilities | None]:
    """All votes, or those on some prompts if there are many more than `n_votes`. A prompt is taken
    whole, because its comparisons share completions.
    """
    votes, utilities = fit.votes, fit.utilities
    if len(votes) <= 2 * n_votes:
        return votes, utilities
    names, prompt = np.unique(votes.prompts.astype(str), return_inverse=True)
    order = rng.permutation(len(names))
    sizes = np.bincount(prompt[votes.comparison], minlength=len(names))[order]
    chosen = np.zeros(len(names), dtype=bool)
    chosen[order[: int(np.searchsorted(np.cumsum(sizes), n_votes)) + 1]] = True
    indices = np.flatnonzero(chosen[prompt])
    part = votes.select_comparisons(indices, share=len(indices) / len(prompt))
    return part, None if utilities is None else utilities.select(indices)


def _simulate(
    fit: FittedVotes,
    votes: JudgementArrays,
    utilities: Utilities | None,
    rng: np.random.Generator,
) -> tuple[JudgementArrays, Floats, Floats]:
    """Votes on the same comparisons, their differences, and the annotators' parameters (n, 4)."""
    n = len(votes.ids)
    d = rng.normal(size=n) if utilities is None else utilities.draw(rng)
    draws = fit.mean + np.sqrt(fit.spread) * rng.normal(size=(len(votes.names), len(fit.mean)))
    theta = np.where(fit.is_free, draws, fit.mean)
    traits = theta[votes.annotator].T
    feelings = traits[DISCRIMINATION] * d[votes.comparison] + traits[BIAS] * votes.display_side
    feelings += rng.logistic(size=len(votes))
    width = np.exp(traits[WIDTH]) if votes.has_ties else np.zeros(len(votes))
    beyond = np.abs(feelings) - width
    side = np.where(beyond < 0, 0, np.sign(feelings)).astype(np.int64)
    ends = np.exp(traits[SCALE])[:, None] * np.cumsum(fit.steps)
    strength = np.where(
        (side != 0) & (votes.strength > 0), 1 + (beyond[:, None] > ends).sum(axis=1), 0
    )
    return votes.with_answers(side, strength), d, theta
