"""Fits utilities of completions and parameters of annotators jointly from votes.

Annotator j on comparison c feels

    x = discrimination_j * d_c + position_bias_j,      d_c = u(completion a) - u(completion b),

and votes according to `graded_response`, with an individual tie width and strength scale. The bias
is toward the left side: its sign is negative if b was displayed left, and the term is omitted if
the display is unknown, on repeats too, where only the swap of a and b is known. A discrimination
near 0 indicates a spammer, one below 0 an annotator who inverts the scale. A completion in several
comparisons has one utility, see `completion_utilities`.

Fitted by EM: Gauss-Hermite quadrature over each d_c (Bock and Aitkin 1981), expectation propagation
between comparisons (Minka 2001), and one damped Newton step over annotators per iteration.
Annotators are drawn from a normal population that is fitted too, so those with few votes are shrunk
to the mean; `simulated_refits` corrects the scale and the widths for it. The fit is deterministic:
the same votes in any order give the same model.
"""

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughVotes, UnknownComparison
from rlhf_pipeline.core.frames import (
    COMPARISONS,
    SOFT_LABELS,
    VOTES,
    FrameSchema,
    check_frame,
    integer,
    number,
    text,
)
from rlhf_pipeline.feedback.votes.completion_utilities import Utilities
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes
from rlhf_pipeline.feedback.votes.expectation import (
    BIAS,
    DISCRIMINATION,
    SCALE,
    WIDTH,
    ExpectationStep,
    Sums,
)
from rlhf_pipeline.feedback.votes.graded_response import MOST_STRENGTH
from rlhf_pipeline.feedback.votes.judgements import SIDES, JudgementArrays, judged_comparison
from rlhf_pipeline.feedback.votes.simulated_refits import LEVEL, Corrections, measure_corrections

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Initial mean and variance of the population. START_WEIGHT imaginary annotators keep its variance
# near the start, which a single annotator could not determine.
START = np.array([1.5, 0.0, np.log(0.3), 0.0])
START_VARIANCE = np.array([0.5, 0.05, 0.1, 0.1])
START_WEIGHT = 2.0
LONGEST_STEP = 0.7
N_SIZES = 200  # bins of the sizes of differences, over which reliability is averaged
N_NODES = 11  # quadrature points over a comparison's utility difference
MAX_ITERATIONS = 200  # the model is then returned as not converged
TOLERANCE = 1e-3  # a fit has converged when no difference or parameter changes by more
REFIT_TOLERANCE = 5e-3  # of simulated votes, whose mean errors matter alone
# minimum precision of a cavity distribution, if a factor is too strong after a neighbour's update
LEAST_CAVITY = 0.3
UNIT = {"low": 0.0, "high": 1.0}

ANNOTATORS = FrameSchema(
    "annotators",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("votes without skips", low=1),
        "reliability": number(
            "probability of choosing the better side of the comparisons voted on, given a choice "
            "of a side; better is meant by the common taste",
            **UNIT,
        ),
        "reliability_low": number("lower end of the interval", **UNIT),
        "reliability_high": number("upper end of the interval", **UNIT),
        "discrimination": number(
            "feeling per unit of utility; 0 votes at random, below 0 against the others"
        ),
        "position_bias": number(
            "probability of choosing the left of two equally good completions, given a choice of "
            "a side, minus one half; missing if no vote has a known display",
            nullable=True,
            low=-0.5,
            high=0.5,
        ),
        "position_bias_low": number("lower end of the interval", nullable=True, low=-0.5, high=0.5),
        "position_bias_high": number(
            "upper end of the interval", nullable=True, low=-0.5, high=0.5
        ),
        "tie_width": number("feelings of smaller size are ties; 0 if there are no ties", low=0.0),
        "strength_scale": number(
            "factor of the annotator's strength steps to the population's", low=0.0
        ),
    },
    key=("annotator_id",),
)


@dataclass(frozen=True)
class JointModel:
    """A fitted joint model: SOFT_LABELS per comparison, ANNOTATORS per annotator, and
    convergence.
    """

    labels: pd.DataFrame
    annotators: pd.DataFrame
    discrimination: float  # of the typical annotator
    n_iterations: int
    is_converged: bool
    # after each iteration; sums over comparisons, as approximated by expectation propagation
    log_likelihoods: tuple[float, ...]
    # final state, used to start a fit with more votes
    fit: "_Fit" = field(repr=False, compare=False)


def joint_model(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame | None = None,
    *,
    start: JointModel | None = None,
) -> JointModel:
    """The joint model of counting VOTES. With COMPARISONS, a completion in several of them has one
    utility.

    `start`, a model of some of the votes, makes the fit faster; the result is the same within the
    tolerance.

    Skips and machine votes are left out; with COMPARISONS also votes on flagged ones, as for pairs.
    A repeat, which swaps the sides, is another vote on the original. Raises NotEnoughVotes if no
    vote remains, UnknownComparison if COMPARISONS lacks a judged one, FrameError.
    """
    human_votes = drop_machine_votes(check_frame(votes, VOTES))
    judgements = human_votes[human_votes["choice"].isin(SIDES)]
    if comparisons is not None:
        comparisons = check_frame(comparisons, COMPARISONS)
        flagged = comparisons.loc[comparisons["flag"].notna(), "comparison_id"]
        judgements = judgements[
            ~(
                judgements["comparison_id"].isin(flagged)
                | judged_comparison(judgements).isin(flagged)
            )
        ]
    if judgements.empty:
        raise NotEnoughVotes(
            "No usable votes: all are skips, machine votes or on flagged comparisons. Collect "
            "some first."
        )
    utilities = None if comparisons is None else _build_utilities(judgements, comparisons)
    fit = _Fit(JudgementArrays(judgements), utilities)
    if start is not None:
        fit.start_from(start.fit)
    fit.run()
    corrections = measure_corrections(fit, fit.refit)
    return fit.model(corrections, max_seq=int(human_votes["seq"].max()))


def _build_utilities(judgements: pd.DataFrame, comparisons: pd.DataFrame) -> Utilities:
    ids = np.unique(judged_comparison(judgements).to_numpy(dtype=str))
    rows = comparisons.set_index("comparison_id")
    missing = ids[~np.isin(ids, rows.index.to_numpy(dtype=str))]
    if len(missing):
        raise UnknownComparison(
            f"{len(missing)} judged comparisons are missing from `comparisons`, first "
            f"{missing[0]}. Pass these as well."
        )
    rows = rows.loc[ids]
    # The same text under two prompts is two completions: its quality depends on the prompt.
    names = [
        rows["prompt_id"].astype(str) + "\0" + rows[f"completion_{side}_id"].astype(str)
        for side in "ab"
    ]
    codes = pd.factorize(pd.concat(names, ignore_index=True), sort=True)[0].astype(np.int64)
    a, b = codes[: len(ids)], codes[len(ids) :].copy()
    is_same = a == b  # a completion compared with itself carries no information
    b[is_same] = codes.max(initial=-1) + 1 + np.arange(is_same.sum())
    return Utilities(a, b)


class _Fit:
    def __init__(self, votes: JudgementArrays, utilities: Utilities | None):
        self.votes = votes
        self.utilities = utilities
        n, n_annotators = len(votes.ids), len(votes.names)
        self.expectation = ExpectationStep(votes, N_NODES)
        self.theta = np.tile(START, (n_annotators, 1))
        self.covariance = np.tile(np.diag(START_VARIANCE), (n_annotators, 1, 1))
        self.mean, self.spread = START.copy(), START_VARIANCE.copy()  # of the population
        self.is_free = self.expectation.is_free
        self.steps = np.ones(MOST_STRENGTH - 1)
        self.cavity, self.factor = (np.zeros(n), np.ones(n)), (np.zeros(n), np.zeros(n))
        self.d: tuple[Floats, Floats] = (np.zeros(n), np.ones(n))
        self.log_likelihoods: list[float] = []
        self.tolerance, self.is_converged = TOLERANCE, False

    def start_from(self, other: "_Fit") -> None:
        """Copy annotators, population and comparisons from `other`. New annotators start at the
        population mean, new comparisons at the prior.
        """
        self.mean = other.mean.copy()
        self.spread = other.spread.copy()
        self.steps = other.steps.copy()
        who, there = _shared_positions(self.votes.names, other.votes.names)
        self.theta = np.tile(self.mean, (len(self.theta), 1))
        self.theta[who] = other.theta[there]
        which, there = _shared_positions(self.votes.ids, other.votes.ids)
        for mine, its in (
            (self.cavity, other.cavity),
            (self.factor, other.factor),
            (self.d, other.d),
        ):
            for of_mine, of_its in zip(mine, its, strict=True):
                of_mine[which] = of_its[there]

    def refit(self, votes: JudgementArrays, utilities: Utilities | None) -> "_Fit":
        """A fit of other votes that starts at this one's population."""
        other = _Fit(votes, utilities)
        other.mean, other.spread, other.steps = (
            state.copy() for state in (self.mean, self.spread, self.steps)
        )
        other.theta = np.tile(self.mean, (len(other.theta), 1))
        other.tolerance = max(self.tolerance, REFIT_TOLERANCE)
        return other.run()

    def run(self) -> "_Fit":
        for _ in range(MAX_ITERATIONS):
            before = self.d[0]
            sums = self.expectation.compute_sums(self.theta, self.steps, self.cavity)
            self.log_likelihoods.append(sums.log_likelihood)
            self._share_utilities(sums)
            moved = self._step_annotators(sums)
            if max(moved, float(np.abs(self.d[0] - before).max())) < self.tolerance:
                self.is_converged = True
                break
        return self

    def _share_utilities(self, sums: Sums) -> None:
        """Propagate between comparisons: update factors, posteriors and cavity distributions."""
        if self.utilities is None:
            self.d = (sums.mean, sums.variance)
            return
        mean, variance = self.cavity
        self.factor = (
            sums.mean / sums.variance - mean / variance,
            np.maximum(1 / sums.variance - 1 / variance, 0.0),
        )
        self.d = self.utilities.differences(self.factor[1], self.factor[0])
        precision = np.maximum(1 / self.d[1] - self.factor[1], LEAST_CAVITY)
        self.cavity = ((self.d[0] / self.d[1] - self.factor[0]) / precision, 1 / precision)

    def _step_annotators(self, sums: Sums) -> float:
        """Take one Newton step of every annotator, then update the population. Returns the largest
        change of a parameter.
        """
        prior = np.where(self.is_free, 1 / self.spread, 1e6)
        curve = sums.curve + np.diag(prior)
        slope = sums.slope - (self.theta - self.mean) * prior
        move = (
            np.clip(np.linalg.solve(curve, slope[..., None])[..., 0], -LONGEST_STEP, LONGEST_STEP)
            * self.is_free
        )
        self.theta = self.theta + move
        self.covariance = np.linalg.inv(_observed_information(sums) + np.diag(prior))
        n = len(self.theta)
        self.mean = np.where(
            self.is_free,
            (self.theta.sum(axis=0) + START_WEIGHT * self.mean) / (n + START_WEIGHT),
            self.mean,
        )
        self.mean[SCALE] = 0.0  # the strength steps already hold the population's scale
        own = ((self.theta - self.mean) ** 2 + np.diagonal(self.covariance, axis1=1, axis2=2)).sum(
            axis=0
        )
        self.spread = (own + START_WEIGHT * START_VARIANCE) / (n + START_WEIGHT)
        if self.votes.has_strengths:
            ends = np.cumsum(self.steps) + np.clip(
                sums.step_slope / np.maximum(sums.step_curve, 1e-9), -0.3, 0.3
            )
            self.steps = np.maximum(np.diff(ends, prepend=0.0), 0.05)
        return float(np.abs(move).max())

    @property
    def preference_sd(self) -> Floats:
        """Standard errors (comparisons,) of what a typical annotator feels, in logits: those of the
        difference, and of the typical discrimination if that is not clearly above 0. Otherwise
        `Corrections.preference_sd` contains the latter.
        """
        spread = self.spread[DISCRIMINATION]
        precision = np.maximum(
            1 / self.covariance[:, DISCRIMINATION, DISCRIMINATION] - 1 / spread, 0.0
        )
        at_start = START_WEIGHT / START_VARIANCE[DISCRIMINATION]
        of_typical = 1 / ((precision / (1 + spread * precision)).sum() + at_start)
        (mean, variance), typical = self.d, self.mean[DISCRIMINATION]
        if typical > 2 * np.sqrt(of_typical):
            of_typical = 0.0
        return np.asarray(np.sqrt(typical**2 * variance + (mean**2 + variance) * of_typical))

    def model(self, corrections: Corrections, *, max_seq: int) -> JointModel:
        from scipy.special import expit

        z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
        mean, sd = corrections.utility * self.d[0], corrections.utility * np.sqrt(self.d[1])
        typical = corrections.discrimination * float(self.mean[DISCRIMINATION])
        scale = corrections.discrimination * corrections.utility
        wide = z * corrections.preference_sd * scale * self.preference_sd
        ends = expit(np.stack([typical * mean - wide, typical * mean + wide]))
        labels = pd.DataFrame(
            {
                "comparison_id": self.votes.ids,
                "prompt_id": self.votes.prompts,
                "utility": mean,
                "sd": corrections.utility_sd * sd,
                "p_a": self._expected_probability(typical * mean, np.abs(typical) * sd),
                "p_low": ends[0],
                "p_high": ends[1],
                "n_votes": np.bincount(self.votes.comparison, minlength=len(mean)),
                "max_seq": max_seq,
            }
        )
        return JointModel(
            labels=check_frame(labels, SOFT_LABELS),
            annotators=self._annotators(z, corrections),
            discrimination=typical,
            n_iterations=len(self.log_likelihoods),
            is_converged=self.is_converged,
            log_likelihoods=tuple(self.log_likelihoods),
            fit=self,
        )

    def _annotators(self, z: float, corrections: Corrections) -> pd.DataFrame:
        from scipy.special import expit

        sd = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        slope = corrections.discrimination * self.theta[:, DISCRIMINATION]
        slope_sd = (
            corrections.discrimination * corrections.discrimination_sd * sd[:, DISCRIMINATION]
        )
        bias = self.theta[:, BIAS]
        # If all annotators see the same completion left, only the prior separates a common left
        # bias from better completions on the left.
        display_side = self.votes.display_side[self.votes.display_side != 0]
        if len(display_side):
            confounded = (
                float(self.mean[DISCRIMINATION] * display_side.mean()) ** 2 / self.votes.n_prompts
            )
            sd[:, BIAS] = np.sqrt(sd[:, BIAS] ** 2 + confounded)
        else:  # no display is known, so the bias is missing rather than 0
            bias = np.full(len(bias), np.nan)
        frame = pd.DataFrame(
            {
                "annotator_id": self.votes.names,
                "n_votes": np.bincount(self.votes.annotator, minlength=len(self.votes.names)),
                "reliability": self.reliability(slope, corrections.utility),
                "reliability_low": self.reliability(slope - z * slope_sd, corrections.utility),
                "reliability_high": self.reliability(slope + z * slope_sd, corrections.utility),
                "discrimination": slope,
                "position_bias": expit(bias) - 0.5,
                "position_bias_low": expit(bias - z * sd[:, BIAS]) - 0.5,
                "position_bias_high": expit(bias + z * sd[:, BIAS]) - 0.5,
                "tie_width": np.exp(self.theta[:, WIDTH]) if self.votes.has_ties else 0.0,
                "strength_scale": np.exp(self.theta[:, SCALE]),
            }
        )
        return check_frame(frame, ANNOTATORS)

    def _expected_probability(self, mean: Floats, sd: Floats) -> Floats:
        from scipy.special import expit

        return np.asarray(
            np.exp(self.expectation.log_weights)
            @ expit(mean + sd * self.expectation.nodes[:, None])
        )

    def reliability(self, slopes: Floats, utility: float) -> Floats:
        """Probability (n,) of choosing the better side for discriminations `slopes` (n,), averaged
        over the posteriors of the comparisons, whose differences are multiplied by `utility`.

        Not averaged over the normal prior: where real utilities have longer tails, the fitted scale
        is a fifth too small, and only its products with the differences fitted beside it are right.
        """
        from scipy.special import expit

        mean, sd = utility * self.d[0], utility * np.sqrt(self.d[1])
        weights = np.exp(self.expectation.log_weights)
        sizes = np.abs(mean + np.multiply.outer(self.expectation.nodes, sd)).ravel()
        counts, ends = np.histogram(
            sizes, bins=N_SIZES, weights=np.repeat(weights, len(mean)) / len(mean)
        )
        return np.asarray(expit(np.multiply.outer(slopes, (ends[1:] + ends[:-1]) / 2)) @ counts)


def _observed_information(sums: Sums) -> Floats:
    """The information (annotators, 4, 4) that votes carry while the utilities are unknown: that of
    known utilities less the variance of the first derivatives over their posterior (Louis 1982).
    """
    information = sums.curve.copy()
    information[:, :2, :2] = _clip_negative(information[:, :2, :2] - sums.slope_variance)
    # What discrimination and bias share with the tie width can still leave it indefinite.
    indefinite = np.linalg.eigvalsh(information)[:, 0] < 0
    information[indefinite] = _clip_negative(information[indefinite])
    return information


def _clip_negative(matrices: Floats) -> Floats:
    """Symmetric matrices (n, k, k) without their negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2))


def _shared_positions(names: npt.NDArray[Any], others: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Positions of the common elements of sorted `names` and sorted `others`, in each."""
    return np.flatnonzero(np.isin(names, others)), np.flatnonzero(np.isin(others, names))
