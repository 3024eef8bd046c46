"""Annotators and taste in one model: what each comparison's votes say, given who cast them. Knows
frames of votes; knows no reward model.

Annotator j on comparison c feels

    x = discrimination_j * d_c + position_bias_j,      d_c = u(completion a) - u(completion b),

and says what `graded_response` makes of it, with a tie width and a strength scale of their own. The
bias is toward the left: its sign is minus where b stood there, and it is left out where nobody
knows which did, a repeat too, of which only is known that a and b changed places. A discrimination
near 0 is a spammer's, one below 0 that of somebody who reads the scale backwards. Completions that
occur in several comparisons share their utility, see `completion_utilities`.

Fitted by EM: over each d_c by Gauss-Hermite quadrature (Bock and Aitkin 1981), between comparisons
by expectation propagation (Minka 2001), over annotators by one damped Newton step an iteration.
Annotators are draws from a normal population that is learnt with them, so those with few votes are
shrunk to the pool. Nothing is drawn: the same votes in any order give the same model.
"""

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import NotEnoughVotes, UnknownComparison
from rlhf_pipeline.frames import (
    COMPARISONS,
    SOFT_LABELS,
    VOTES,
    FrameSchema,
    check_frame,
    integer,
    number,
    text,
)
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.completion_utilities import Utilities
from rlhf_pipeline.votes.expectation import (
    BIAS,
    DISCRIMINATION,
    SCALE,
    WIDTH,
    ExpectationStep,
    Sums,
)
from rlhf_pipeline.votes.graded_response import MOST_STRENGTH
from rlhf_pipeline.votes.judgements import SIDES, JudgementArrays, judged_comparison

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Where the population starts, and with how many imagined annotators' weight its spread is held
# there: one annotator has no population.
START = np.array([1.5, 0.0, np.log(0.3), 0.0])
START_VARIANCE = np.array([0.5, 0.05, 0.1, 0.1])
START_WEIGHT = 2.0
LONGEST_STEP = 0.7
# precision: a factor that a neighbour's change made too strong leaves at least this much of the
# prior
LEAST_CAVITY = 0.3
UNIT = {"low": 0.0, "high": 1.0}

ANNOTATORS = FrameSchema(
    "annotators",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("judgements, skips left out", low=1),
        "reliability": number(
            "chance to take the better side of a typical comparison, if taking one", **UNIT
        ),
        "reliability_low": number("lower end of its interval", **UNIT),
        "reliability_high": number("upper end of its interval", **UNIT),
        "discrimination": number(
            "what one unit of utility is felt as; 0 votes at random, below 0 against the others"
        ),
        "position_bias": number(
            "chance to take the left of two completions that are equally good, if taking one, less "
            "one half; missing where of no vote is known which stood left",
            nullable=True,
            low=-0.5,
            high=0.5,
        ),
        "position_bias_low": number("lower end of its interval", nullable=True, low=-0.5, high=0.5),
        "position_bias_high": number(
            "upper end of its interval", nullable=True, low=-0.5, high=0.5
        ),
        "tie_width": number("feelings up to it are ties; 0 where nobody said tie", low=0.0),
        "strength_scale": number("steps of strength are this much wider than the pool's", low=0.0),
    },
    key=("annotator_id",),
)


class JointParams(BaseModel):
    """How the joint model is fitted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    shares_completions: bool = Field(
        default=True,
        description="A completion has one utility in all its comparisons (needs comparisons)",
    )
    n_nodes: int = Field(
        default=11,
        ge=5,
        le=61,
        description="Points of the quadrature over a comparison's difference of utility",
    )
    max_iterations: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description="After these the model is given back as not converged",
    )
    tolerance: float = Field(
        default=1e-3,
        gt=0,
        description="Change of every difference and parameter below which it has converged",
    )
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of the intervals")


@dataclass(frozen=True)
class JointModel:
    """SOFT_LABELS of the comparisons, ANNOTATORS, and how the fit went."""

    labels: pd.DataFrame
    annotators: pd.DataFrame
    discrimination: float  # of the typical annotator
    n_iterations: int
    is_converged: bool
    # after each iteration; of single comparisons, as expectation propagation has it
    log_likelihoods: tuple[float, ...]
    # where it ended, for a fit to more votes to begin at
    fit: "_Fit" = field(repr=False, compare=False)


def joint_model(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame | None = None,
    params: JointParams | None = None,
    *,
    start: JointModel | None = None,
) -> JointModel:
    """The joint model of VOTES that count; with COMPARISONS, completions that occur in several of
    them share their utility.

    `start`, a model of some of the votes, is where the fit begins: it is sooner at the same end,
    within the tolerance.

    Skips and machine votes are left out, and with COMPARISONS votes on flagged ones, as of pairs; a
    repeat, which shows the sides swapped, is one more judgement of the original. Raises
    NotEnoughVotes where nobody judged anything, UnknownComparison where COMPARISONS lacks one that
    was judged, FrameError.
    """
    params = params or JointParams()
    said = drop_machine_votes(check_frame(votes, VOTES))
    judged = said[said["choice"].isin(SIDES)]
    if comparisons is not None:
        comparisons = check_frame(comparisons, COMPARISONS)
        flagged = comparisons.loc[comparisons["flag"].notna(), "comparison_id"]
        judged = judged[
            ~(judged["comparison_id"].isin(flagged) | judged_comparison(judged).isin(flagged))
        ]
    if judged.empty:
        raise NotEnoughVotes(
            "No vote judges a comparison: all are skips, a machine's or on flagged comparisons. "
            "Collect some first."
        )
    utilities = (
        _build_utilities(judged, comparisons)
        if params.shares_completions and comparisons is not None
        else None
    )
    fit = _Fit(JudgementArrays(judged), utilities, params)
    if start is not None:
        fit.start_from(start.fit)
    return fit.run().model(max_seq=int(said["seq"].max()))


def _build_utilities(judged: pd.DataFrame, comparisons: pd.DataFrame) -> Utilities:
    ids = np.unique(judged_comparison(judged).to_numpy(dtype=str))
    known = comparisons.set_index("comparison_id")
    lost = ids[~np.isin(ids, known.index.to_numpy(dtype=str))]
    if len(lost):
        raise UnknownComparison(
            f"{len(lost)} comparisons were judged that are not given, first {lost[0]}. Hand in "
            "those as well."
        )
    known = known.loc[ids]
    # The same text under two prompts is two things: what is good depends on what was asked.
    names = [
        known["prompt_id"].astype(str) + "\0" + known[f"completion_{side}_id"].astype(str)
        for side in "ab"
    ]
    codes = pd.factorize(pd.concat(names, ignore_index=True), sort=True)[0].astype(np.int64)
    a, b = codes[: len(ids)], codes[len(ids) :].copy()
    is_same = a == b  # a completion beside itself: nothing is learnt of its utility
    b[is_same] = codes.max(initial=-1) + 1 + np.arange(is_same.sum())
    return Utilities(a, b)


class _Fit:
    def __init__(self, votes: JudgementArrays, utilities: Utilities | None, params: JointParams):
        self.votes, self.utilities, self.params = votes, utilities, params
        n, n_annotators = len(votes.ids), len(votes.names)
        self.expectation = ExpectationStep(votes, params.n_nodes)
        self.theta = np.tile(START, (n_annotators, 1))
        self.covariance = np.tile(np.diag(START_VARIANCE), (n_annotators, 1, 1))
        self.mean, self.spread = START.copy(), START_VARIANCE.copy()  # of the population
        self.is_free = self.expectation.is_free
        self.steps = np.ones(MOST_STRENGTH - 1)
        self.cavity, self.factor = (np.zeros(n), np.ones(n)), (np.zeros(n), np.zeros(n))
        self.d: tuple[Floats, Floats] = (np.zeros(n), np.ones(n))
        self.log_likelihoods: list[float] = []
        self.is_converged = False

    def start_from(self, other: "_Fit") -> None:
        """Annotators, population and comparisons as `other` has them; whom and what it does not
        know begins as nobody's.
        """
        self.mean, self.spread, self.steps = (
            other.mean.copy(),
            other.spread.copy(),
            other.steps.copy(),
        )
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

    def run(self) -> "_Fit":
        for _ in range(self.params.max_iterations):
            before = self.d[0]
            sums = self.expectation.compute_sums(self.theta, self.steps, self.cavity)
            self.log_likelihoods.append(sums.log_likelihood)
            self._share_utilities(sums)
            moved = self._step_annotators(sums)
            if max(moved, float(np.abs(self.d[0] - before).max())) < self.params.tolerance:
                self.is_converged = True
                break
        return self

    def _share_utilities(self, sums: Sums) -> None:
        """What the comparisons tell of each other: the new factors, and for each what all others
        say of it.
        """
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
        """One step of every annotator toward their votes and the population, then of the
        population; the longest one taken.
        """
        prior = np.where(self.is_free, 1 / self.spread, 1e6)
        curve = sums.curve + np.diag(prior)
        slope = sums.slope - (self.theta - self.mean) * prior
        move = (
            np.clip(np.linalg.solve(curve, slope[..., None])[..., 0], -LONGEST_STEP, LONGEST_STEP)
            * self.is_free
        )
        self.theta = self.theta + move
        self.covariance = np.linalg.inv(curve)
        n = len(self.theta)
        self.mean = np.where(
            self.is_free,
            (self.theta.sum(axis=0) + START_WEIGHT * self.mean) / (n + START_WEIGHT),
            self.mean,
        )
        self.mean[SCALE] = 0.0  # the steps themselves are the pool's
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

    def model(self, *, max_seq: int) -> JointModel:
        from scipy.special import expit

        z = NormalDist().inv_cdf(0.5 + self.params.level / 2)
        mean, sd = self.d[0], np.sqrt(self.d[1])
        typical = float(self.mean[DISCRIMINATION])
        ends = np.sort(
            np.stack([expit(typical * (mean - z * sd)), expit(typical * (mean + z * sd))]), axis=0
        )
        labels = pd.DataFrame(
            {
                "comparison_id": self.votes.ids,
                "prompt_id": self.votes.prompts,
                "utility": mean,
                "sd": sd,
                "p_a": self._expected_probability(typical * mean, np.abs(typical) * sd),
                "p_low": ends[0],
                "p_high": ends[1],
                "n_votes": np.bincount(self.votes.comparison, minlength=len(mean)),
                "max_seq": max_seq,
            }
        )
        return JointModel(
            labels=check_frame(labels, SOFT_LABELS),
            annotators=self._annotators(z),
            discrimination=typical,
            n_iterations=len(self.log_likelihoods),
            is_converged=self.is_converged,
            log_likelihoods=tuple(self.log_likelihoods),
            fit=self,
        )

    def _annotators(self, z: float) -> pd.DataFrame:
        from scipy.special import expit

        sd = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        slope, bias = self.theta[:, DISCRIMINATION], self.theta[:, BIAS]
        # If all see the same completion left, a leaning of all to the left and better completions
        # there are told apart by the prior alone.
        shown = self.votes.shown[self.votes.shown != 0]
        if len(shown):
            confounded = float(self.mean[DISCRIMINATION] * shown.mean()) ** 2 / self.votes.n_prompts
            sd[:, BIAS] = np.sqrt(sd[:, BIAS] ** 2 + confounded)
        else:  # nothing was seen of it: no figure, not a leaning of none
            bias = np.full(len(bias), np.nan)
        frame = pd.DataFrame(
            {
                "annotator_id": self.votes.names,
                "n_votes": np.bincount(self.votes.annotator, minlength=len(self.votes.names)),
                "reliability": self._reliability(slope),
                "reliability_low": self._reliability(slope - z * sd[:, DISCRIMINATION]),
                "reliability_high": self._reliability(slope + z * sd[:, DISCRIMINATION]),
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

    def _reliability(self, discrimination: Floats) -> Floats:
        """Chance of the better side over differences of the prior."""
        from scipy.special import expit

        nodes, weights = np.polynomial.hermite_e.hermegauss(61)
        return np.asarray(
            (weights / weights.sum()) @ expit(np.abs(nodes)[:, None] * discrimination)
        )


def _shared_positions(names: npt.NDArray[Any], others: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Where those of sorted `names` that are among the sorted `others` stand, here and there."""
    return np.flatnonzero(np.isin(names, others)), np.flatnonzero(np.isin(others, names))
