"""Annotators and taste in one model: what each comparison's votes say, given who cast them. Knows frames of votes; knows no reward model.

Annotator j on comparison c feels

    x = discrimination_j * d_c + position_bias_j,      d_c = u(completion a) - u(completion b),

and says what `graded` makes of it, with a tie width and a strength scale of their own. A discrimination near 0 is a spammer's, one below 0
that of somebody who reads the scale backwards. Completions that occur in several comparisons share their utility, see `utilities`.

Fitted by EM: over each d_c by Gauss-Hermite quadrature (Bock and Aitkin 1981), between comparisons by expectation propagation (Minka
2001), over annotators by one damped Newton step an iteration. Annotators are draws from a normal population that is learnt with them,
so those with few votes are shrunk to the pool. Nothing is drawn: the same votes in any order give the same model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import NotEnoughVotes, UnknownComparison
from rlhf_pipeline.frames import COMPARISONS, SOFT_LABELS, VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.graded import log_chance, slopes
from rlhf_pipeline.votes.people import by_people
from rlhf_pipeline.votes.utilities import Utilities

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIDES = {Choice.A: 1, Choice.B: -1, Choice.TIE: 0, Choice.BOTH_BAD: 0}
MOST_STRENGTH = 4
VOTES_AT_ONCE = 20_000
DISCRIMINATION, BIAS, WIDTH, SCALE = range(4)  # of an annotator; tie width and strength scale as logarithms
# Where the population starts, and with how many imagined annotators' weight its spread is held there: one annotator has no population.
START = np.array([1.5, 0.0, np.log(0.3), 0.0])
START_VARIANCE = np.array([0.5, 0.05, 0.1, 0.1])
START_WEIGHT = 2.0
LONGEST_STEP = 0.7
LEAST_CAVITY = 0.3  # precision: a factor that a neighbour's change made too strong leaves at least this much of the prior
UNIT = {"low": 0.0, "high": 1.0}

ANNOTATORS = FrameSchema(
    "annotators",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("judgements, skips left out", low=1),
        "reliability": number("chance to take the better side of a typical comparison, if taking one", **UNIT),
        "reliability_low": number("lower end of its interval", **UNIT),
        "reliability_high": number("upper end of its interval", **UNIT),
        "discrimination": number("what one unit of utility is felt as; 0 votes at random, below 0 against the others"),
        "position_bias": number("chance to take the left of two completions that are equally good, if taking one, less one half", low=-0.5, high=0.5),
        "position_bias_low": number("lower end of its interval", low=-0.5, high=0.5),
        "position_bias_high": number("upper end of its interval", low=-0.5, high=0.5),
        "tie_width": number("feelings up to it are ties; 0 where nobody said tie", low=0.0),
        "strength_scale": number("steps of strength are this much wider than the pool's", low=0.0),
    },
    key=("annotator_id",),
)  # fmt: skip


class JointParams(BaseModel):
    """How the joint model is fitted."""

    model_config = ConfigDict(extra="forbid")

    shares_completions: bool = Field(default=True, description="A completion has one utility in all its comparisons (needs comparisons)")
    n_nodes: int = Field(default=11, ge=5, le=61, description="Points of the quadrature over a comparison's difference of utility")
    max_iterations: int = Field(default=200, ge=1, le=10_000, description="After these the model is given back as not converged")
    tolerance: float = Field(default=1e-3, gt=0, description="Change of every difference and parameter below which it has converged")
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of the intervals")


@dataclass(frozen=True)
class JointModel:
    """SOFT_LABELS of the comparisons, ANNOTATORS, and how the fit went."""

    labels: pd.DataFrame
    annotators: pd.DataFrame
    discrimination: float  # of the typical annotator
    n_iterations: int
    is_converged: bool
    log_likelihoods: tuple[float, ...]  # after each iteration; of single comparisons, as expectation propagation has it


def joint_model(votes: pd.DataFrame, comparisons: pd.DataFrame | None = None, params: JointParams | None = None) -> JointModel:
    """The joint model of a VOTES frame; with COMPARISONS, completions that occur in several of them share their utility.

    Skips and machine votes are left out; a repeat, which shows the sides swapped, is one more judgement of the original. Raises
    NotEnoughVotes where nobody judged anything, UnknownComparison where COMPARISONS lacks one that was judged, FrameError.
    """
    params = params or JointParams()
    judged = by_people(check_frame(votes, VOTES))
    judged = judged[judged["choice"].isin(SIDES)]
    if judged.empty:
        raise NotEnoughVotes("No vote judges a comparison: all are skips or a machine's. Collect some first.")
    fit = _Fit(
        _Judgements(judged), _utilities(judged, comparisons) if params.shares_completions and comparisons is not None else None, params
    )
    return fit.run().model(judged)


def _about(judged: pd.DataFrame) -> pd.Series:
    """The comparison each vote is about: of a repeat, the one it repeats."""
    return judged["repeat_of"].fillna(judged["comparison_id"])


def _utilities(judged: pd.DataFrame, comparisons: pd.DataFrame) -> Utilities:
    ids = np.unique(_about(judged).to_numpy(dtype=str))
    known = check_frame(comparisons, COMPARISONS).set_index("comparison_id")
    lost = ids[~np.isin(ids, known.index.to_numpy(dtype=str))]
    if len(lost):
        raise UnknownComparison(f"{len(lost)} comparisons were judged that are not given, first {lost[0]}. Hand in those as well.")
    known = known.loc[ids]
    # The same text under two prompts is two things: what is good depends on what was asked.
    names = [known["prompt_id"].astype(str) + "\0" + known[f"completion_{side}_id"].astype(str) for side in "ab"]
    codes = pd.factorize(pd.concat(names, ignore_index=True), sort=True)[0].astype(np.int64)
    a, b = codes[: len(ids)], codes[len(ids) :].copy()
    is_same = a == b  # a completion beside itself: nothing is learnt of its utility
    b[is_same] = codes.max(initial=-1) + 1 + np.arange(is_same.sum())
    return Utilities(a, b)


class _Judgements:
    """Votes as arrays, sorted by comparison: whose, of what, and between which feelings."""

    def __init__(self, judged: pd.DataFrame):
        is_repeat = judged["repeat_of"].notna().to_numpy()
        is_swapped = judged["is_swapped"].fillna(False).to_numpy(dtype=bool)
        self.ids, comparison = np.unique(_about(judged).to_numpy(dtype=str), return_inverse=True)
        self.names, annotator = np.unique(judged["annotator_id"].to_numpy(dtype=str), return_inverse=True)
        side = judged["choice"].map({str(choice): side for choice, side in SIDES.items()}).to_numpy(dtype=np.int64)
        strength = judged["strength"].fillna(0).to_numpy(dtype=np.int64)
        # Sums depend on the order in the last bits: the same votes are to give the same model however they come.
        order = np.lexsort((strength, side, is_swapped, is_repeat, annotator, comparison))
        self.comparison, self.annotator = comparison[order].astype(np.int64), annotator[order].astype(np.int64)
        self.side, self.strength = side[order], strength[order]
        # On a repeat a and b have changed places: what favours a there, favours b of the original.
        turned = np.where(is_repeat[order], -1, 1)
        self.side = self.side * turned
        # 1 where a of the original stood left: a card may have swapped the sides of either once more.
        self.shown = turned * np.where(is_swapped[order], -1, 1)
        self.n_prompts = judged["prompt_id"].nunique()
        self.starts = np.flatnonzero(np.diff(self.comparison, prepend=-1))
        self.has_ties, self.has_strengths = bool((side == 0).any()), bool((strength > 0).any())

    def __len__(self) -> int:
        return len(self.comparison)

    def parts(self) -> Iterator[slice]:
        """Whole comparisons, some VOTES_AT_ONCE votes at a time."""
        begin = 0
        while begin < len(self):
            following = np.searchsorted(self.starts, begin + VOTES_AT_ONCE)
            end = int(self.starts[following]) if following < len(self.starts) else len(self)
            yield slice(begin, end)
            begin = end


@dataclass
class _Sums:
    """What one pass over the votes adds up: posteriors of the comparisons, slopes by the annotators and by the steps of strength."""

    mean: Floats
    variance: Floats
    slope: Floats  # (annotators, 4)
    curve: Floats  # (annotators, 4, 4), positive semidefinite
    step_slope: Floats  # (3,)
    step_curve: Floats
    log_likelihood: float = 0.0


class _Fit:
    def __init__(self, votes: _Judgements, utilities: Utilities | None, params: JointParams):
        self.votes, self.utilities, self.params = votes, utilities, params
        n, n_annotators = len(votes.ids), len(votes.names)
        nodes, weights = np.polynomial.hermite_e.hermegauss(params.n_nodes)
        self.nodes, self.log_weights = nodes, np.log(weights / weights.sum())
        self.theta = np.tile(START, (n_annotators, 1))
        self.covariance = np.tile(np.diag(START_VARIANCE), (n_annotators, 1, 1))
        self.mean, self.spread = START.copy(), START_VARIANCE.copy()  # of the population
        self.is_free = np.array([True, True, votes.has_ties, votes.has_strengths])
        self.steps = np.ones(MOST_STRENGTH - 1)
        self.cavity, self.factor = (np.zeros(n), np.ones(n)), (np.zeros(n), np.zeros(n))
        self.d: tuple[Floats, Floats] = (np.zeros(n), np.ones(n))
        self.log_likelihoods: list[float] = []
        self.is_converged = False

    def run(self) -> "_Fit":
        for _ in range(self.params.max_iterations):
            before = self.d[0]
            sums = self._pass()
            self.log_likelihoods.append(sums.log_likelihood)
            self._connect(sums)
            moved = self._improve(sums)
            if max(moved, float(np.abs(self.d[0] - before).max())) < self.params.tolerance:
                self.is_converged = True
                break
        return self

    def _pass(self) -> _Sums:
        n, n_annotators, n_steps = len(self.votes.ids), len(self.votes.names), MOST_STRENGTH - 1
        sums = _Sums(
            np.zeros(n), np.ones(n), np.zeros((n_annotators, 4)), np.zeros((n_annotators, 4, 4)), np.zeros(n_steps), np.zeros(n_steps)
        )
        for part in self.votes.parts():
            self._add(part, sums)
        return sums

    def _add(self, part: slice, sums: _Sums) -> None:
        from scipy.special import logsumexp

        votes, theta = self.votes, self.theta[self.votes.annotator[part]]
        j, side, strength, shown = votes.annotator[part], votes.side[part], votes.strength[part], votes.shown[part]
        begins = np.flatnonzero(np.diff(votes.comparison[part], prepend=-1))
        c = votes.comparison[part][begins]
        row = np.repeat(np.arange(len(c)), np.diff(begins, append=len(j)))
        d = self.cavity[0][c][:, None] + np.sqrt(self.cavity[1][c])[:, None] * self.nodes
        ends = _Ends(side, strength, theta, self.steps, has_ties=votes.has_ties)
        # A vote for b is one for a of the mirrored feeling.
        toward = np.where(side < 0, -1.0, 1.0)
        felt = toward[:, None] * (theta[:, DISCRIMINATION, None] * d[row] + (theta[:, BIAS] * shown)[:, None])
        low, high = ends.low[:, None], ends.high[:, None]
        joint = np.add.reduceat(log_chance(felt, low, high), begins, axis=0) + self.log_weights
        evidence = logsumexp(joint, axis=1)
        chance = np.exp(joint - evidence[:, None])
        mean = (chance * d).sum(axis=1)
        sums.log_likelihood += float(evidence.sum())
        sums.mean[c], sums.variance[c] = mean, np.maximum((chance * (d - mean[:, None]) ** 2).sum(axis=1), 1e-9)
        self._add_slopes(sums, j, strength, ends, (toward, toward * shown), chance[row], d[row], slopes(felt, low, high))

    def _add_slopes(
        self, sums: _Sums, j: Ints, strength: Ints, ends: "_Ends", toward: tuple[Floats, Floats], chance: Floats, d: Floats, by: Any
    ) -> None:
        """Expected slopes over the posterior of each comparison; the curve without the terms that could make it negative (Gauss-Newton)."""
        n_annotators = len(self.votes.names)
        by_high, by_low = (chance * by.by_high).sum(axis=1), (chance * by.by_low).sum(axis=1)
        by_felt = -chance * (by.by_high + by.by_low)
        parts = (
            toward[0] * (by_felt * d).sum(axis=1),
            toward[1] * by_felt.sum(axis=1),
            by_high * ends.high_by[0] + by_low * ends.low_by[0],
            by_high * ends.high_by[1] + by_low * ends.low_by[1],
        )
        # By each parameter, how fast the ends, seen from the feeling, move: -d, -1 and what the ends do; as power of d and factor.
        of_high = ((1, -toward[0]), (0, -toward[1]), (0, ends.high_by[0]), (0, ends.high_by[1]))
        of_low = ((1, -toward[0]), (0, -toward[1]), (0, ends.low_by[0]), (0, ends.low_by[1]))
        powers = (np.ones_like(d), d, d * d)
        moments = [[(chance * curve * power).sum(axis=1) for power in powers] for curve in (by.high_high, by.low_low, by.high_low)]
        for p in range(4):
            sums.slope[:, p] += np.bincount(j, weights=parts[p], minlength=n_annotators)
            for q in range(p, 4):
                k = of_high[p][0] + of_high[q][0]
                both = (
                    moments[0][k] * of_high[p][1] * of_high[q][1]
                    + moments[1][k] * of_low[p][1] * of_low[q][1]
                    + moments[2][k] * (of_high[p][1] * of_low[q][1] + of_low[p][1] * of_high[q][1])
                )
                total = np.bincount(j, weights=both, minlength=n_annotators)
                sums.curve[:, p, q] += total
                if p != q:
                    sums.curve[:, q, p] += total
        for step in range(len(self.steps) if self.votes.has_strengths else 0):  # the end of strength step + 1, the beginning of the next
            ended, begun = strength == step + 1, strength == step + 2
            sums.step_slope[step] += (by_high * ends.scale)[ended].sum() + (by_low * ends.scale)[begun].sum()
            sums.step_curve[step] += (moments[0][0] * ends.scale**2)[ended].sum() + (moments[1][0] * ends.scale**2)[begun].sum()

    def _connect(self, sums: _Sums) -> None:
        """What the comparisons tell of each other: the new factors, and for each what all others say of it."""
        if self.utilities is None:
            self.d = (sums.mean, sums.variance)
            return
        mean, variance = self.cavity
        self.factor = (sums.mean / sums.variance - mean / variance, np.maximum(1 / sums.variance - 1 / variance, 0.0))
        self.d = self.utilities.differences(self.factor[1], self.factor[0])
        precision = np.maximum(1 / self.d[1] - self.factor[1], LEAST_CAVITY)
        self.cavity = ((self.d[0] / self.d[1] - self.factor[0]) / precision, 1 / precision)

    def _improve(self, sums: _Sums) -> float:
        """One step of every annotator toward their votes and the population, then of the population; the longest one taken."""
        prior = np.where(self.is_free, 1 / self.spread, 1e6)
        curve = sums.curve + np.diag(prior)
        slope = sums.slope - (self.theta - self.mean) * prior
        move = np.clip(np.linalg.solve(curve, slope[..., None])[..., 0], -LONGEST_STEP, LONGEST_STEP) * self.is_free
        self.theta = self.theta + move
        self.covariance = np.linalg.inv(curve)
        n = len(self.theta)
        self.mean = np.where(self.is_free, (self.theta.sum(axis=0) + START_WEIGHT * self.mean) / (n + START_WEIGHT), self.mean)
        self.mean[SCALE] = 0.0  # the steps themselves are the pool's
        own = ((self.theta - self.mean) ** 2 + np.diagonal(self.covariance, axis1=1, axis2=2)).sum(axis=0)
        self.spread = (own + START_WEIGHT * START_VARIANCE) / (n + START_WEIGHT)
        if self.votes.has_strengths:
            ends = np.cumsum(self.steps) + np.clip(sums.step_slope / np.maximum(sums.step_curve, 1e-9), -0.3, 0.3)
            self.steps = np.maximum(np.diff(ends, prepend=0.0), 0.05)
        return float(np.abs(move).max())

    def model(self, judged: pd.DataFrame) -> JointModel:
        from scipy.special import expit

        z = NormalDist().inv_cdf(0.5 + self.params.level / 2)
        prompts = dict(zip(_about(judged), judged["prompt_id"], strict=True))
        mean, sd = self.d[0], np.sqrt(self.d[1])
        typical = float(self.mean[DISCRIMINATION])
        ends = np.sort(np.stack([expit(typical * (mean - z * sd)), expit(typical * (mean + z * sd))]), axis=0)
        labels = pd.DataFrame(
            {
                "comparison_id": self.votes.ids,
                "prompt_id": [prompts[c] for c in self.votes.ids],
                "utility": mean,
                "sd": sd,
                "p_a": self._expected(typical * mean, np.abs(typical) * sd),
                "p_low": ends[0],
                "p_high": ends[1],
                "n_votes": np.bincount(self.votes.comparison, minlength=len(mean)),
            }
        )
        return JointModel(
            labels=check_frame(labels, SOFT_LABELS), annotators=self._annotators(z), discrimination=typical,
            n_iterations=len(self.log_likelihoods), is_converged=self.is_converged, log_likelihoods=tuple(self.log_likelihoods),
        )  # fmt: skip

    def _annotators(self, z: float) -> pd.DataFrame:
        from scipy.special import expit

        sd = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        slope, bias = self.theta[:, DISCRIMINATION], self.theta[:, BIAS]
        # If all see the same completion left, a leaning of all to the left and better completions there are told apart by the prior alone.
        confounded = float(self.mean[DISCRIMINATION] * self.votes.shown.mean()) ** 2 / self.votes.n_prompts
        sd[:, BIAS] = np.sqrt(sd[:, BIAS] ** 2 + confounded)
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

    def _expected(self, mean: Floats, sd: Floats) -> Floats:
        from scipy.special import expit

        return np.asarray(np.exp(self.log_weights) @ expit(mean + sd * self.nodes[:, None]))

    def _reliability(self, discrimination: Floats) -> Floats:
        """Chance of the better side over differences of the prior."""
        from scipy.special import expit

        nodes, weights = np.polynomial.hermite_e.hermegauss(61)
        return np.asarray((weights / weights.sum()) @ expit(np.abs(nodes)[:, None] * discrimination))


class _Ends:
    """Between which feelings each judgement lies, seen from the side that was taken, and how the ends move with tie width and scale."""

    def __init__(self, side: Ints, strength: Ints, theta: Floats, steps: Floats, *, has_ties: bool):
        width = np.exp(theta[:, WIDTH]) if has_ties else np.zeros(len(theta))
        self.scale = np.exp(theta[:, SCALE])
        far = np.concatenate([[0.0], np.cumsum(steps)])
        is_tie, is_bounded = side == 0, (strength > 0) & (strength < MOST_STRENGTH)
        low_step, high_step = far[np.maximum(strength - 1, 0)], far[np.minimum(strength, MOST_STRENGTH - 1)] * is_bounded
        self.low_by = (np.where(is_tie, -1.0, 1.0) * width, low_step * self.scale)
        self.high_by = (np.where(is_tie | is_bounded, 1.0, 0.0) * width, high_step * self.scale)
        self.low = self.low_by[0] + self.low_by[1]
        self.high = np.where(is_tie | is_bounded, self.high_by[0] + self.high_by[1], np.inf)
