"""The E-step of the joint model: posteriors per comparison, and gradients per annotator."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.feedback.votes.graded_response import (
    Floats,
    LevelProbabilities,
    Slopes,
    ThresholdBounds,
    level_probabilities,
    slopes,
)
from rlhf_pipeline.feedback.votes.judgements import JudgementArrays

# parameters of an annotator; tie width and strength scale are logarithms
DISCRIMINATION, BIAS, WIDTH, SCALE = range(4)


@dataclass
class Sums:
    """Posterior moments of the comparisons, expected first and second derivatives of the
    log-likelihood by annotator parameters and strength steps, and the variance of the first ones.
    """

    mean: Floats  # (comparisons,)
    variance: Floats
    slope: Floats  # (annotators, 4)
    curve: Floats  # (annotators, 4, 4), positive semidefinite
    # (annotators, 2, 2), of discrimination and bias, over the posteriors of the comparisons
    slope_variance: Floats
    step_slope: Floats  # (3,)
    step_curve: Floats
    log_likelihood: float = 0.0


class ExpectationStep:
    """E-steps over the same votes, by Gauss-Hermite quadrature over each comparison's utility
    difference.
    """

    def __init__(self, votes: JudgementArrays, n_nodes: int):
        self.votes = votes
        self.nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
        self.log_weights = np.log(weights / weights.sum())
        self._powers = np.vander(self.nodes, 3, increasing=True)
        self._free = [p for p in range(4) if self.is_free[p]]

    @property
    def is_free(self) -> npt.NDArray[np.bool_]:
        """Which of an annotator's parameters any vote tells something of."""
        return np.array([True, self.votes.has_sides, self.votes.has_ties, self.votes.has_strengths])

    def compute_sums(self, theta: Floats, steps: Floats, cavity: tuple[Floats, Floats]) -> Sums:
        """The sums for parameters `theta` (annotators, 4), strength `steps` (3,) and `cavity`, the
        mean and variance (comparisons,) of each difference without this comparison's votes.
        """
        n, n_annotators = len(self.votes.ids), len(self.votes.names)
        slope, curve = np.zeros((4, n_annotators)), np.zeros((4, 4, n_annotators))
        sums = Sums(
            np.zeros(n),
            np.ones(n),
            slope.T,
            curve.transpose(2, 0, 1),
            np.zeros((n_annotators, 2, 2)),
            np.zeros(len(steps)),
            np.zeros(len(steps)),
        )
        columns = np.ascontiguousarray(theta.T)
        for part in self.votes.parts():
            self._add(part, columns, steps, cavity, sums)
        # only the upper triangle was summed
        sums.curve += np.triu(sums.curve, 1).transpose(0, 2, 1)
        return sums

    def _add(
        self, part: slice, columns: Floats, steps: Floats, cavity: tuple[Floats, Floats], sums: Sums
    ) -> None:
        votes = self.votes
        j = votes.annotator[part]
        side = votes.side[part]
        strength = votes.strength[part]
        display_side = votes.display_side[part]
        begins = np.flatnonzero(np.diff(votes.comparison[part], prepend=-1))
        c, times = votes.comparison[part][begins], np.diff(begins, append=len(j))
        mean, sd = cavity[0][c], np.sqrt(cavity[1][c])  # cavity distribution of d
        traits = columns[:, j]
        width = np.exp(traits[WIDTH]) if votes.has_ties else np.zeros(len(j))
        ends = ThresholdBounds(side, strength, width, np.exp(traits[SCALE]), steps)
        # A vote for b equals a vote for a with the sign of the feeling reversed.
        toward = np.where(side < 0, -1.0, 1.0)
        by_d = toward * traits[DISCRIMINATION]
        feelings = np.multiply.outer(by_d * np.repeat(sd, times), self.nodes)
        feelings += (by_d * np.repeat(mean, times) + toward * traits[BIAS] * display_side)[:, None]
        probabilities = level_probabilities(feelings, ends.low, ends.high)
        joint = np.add.reduceat(probabilities.log, begins, axis=0) + self.log_weights
        most = joint.max(axis=1)
        posterior = np.exp(joint - most[:, None])
        evidence, first, second = (posterior @ self._powers).T
        posterior /= evidence[:, None]
        # moments of the nodes, then of d
        first, second = first / evidence, second / evidence
        sums.log_likelihood += float((most + np.log(evidence)).sum())
        sums.mean[c], sums.variance[c] = (
            mean + sd * first,
            np.maximum(sd**2 * (second - first**2), 1e-9),
        )
        difference = np.repeat(mean, times)[:, None] + np.multiply.outer(
            np.repeat(sd, times), self.nodes
        )
        self._add_slope_variance(
            sums, part, probabilities, np.repeat(posterior, times, axis=0), difference
        )
        of_nodes = slopes(probabilities, np.repeat(posterior, times, axis=0), self._powers)
        by_power = Slopes(
            *(
                _powers_of_difference(node_slopes, np.repeat(mean, times), np.repeat(sd, times))
                for node_slopes in of_nodes
            )
        )
        self._add_slopes(sums, part, ends, toward, probabilities.odds, by_power)

    def _add_slope_variance(
        self,
        sums: Sums,
        part: slice,
        probabilities: LevelProbabilities,
        weights: Floats,
        difference: Floats,
    ) -> None:
        by_feeling = probabilities.before.copy()
        by_feeling[probabilities.bounded] -= probabilities.beyond
        by_both = by_feeling * difference
        first, second = (weights * by_both).sum(axis=1), (weights * by_feeling).sum(axis=1)
        display_side = self.votes.display_side[part]
        mixed = display_side * ((weights * by_both * by_feeling).sum(axis=1) - first * second)
        for p, q, variance in (
            (DISCRIMINATION, DISCRIMINATION, (weights * by_both**2).sum(axis=1) - first**2),
            (DISCRIMINATION, BIAS, mixed),
            (BIAS, DISCRIMINATION, mixed),
            (BIAS, BIAS, display_side**2 * ((weights * by_feeling**2).sum(axis=1) - second**2)),
        ):
            np.add.at(sums.slope_variance[:, p, q], self.votes.annotator[part], variance)

    def _add_slopes(
        self,
        sums: Sums,
        part: slice,
        ends: ThresholdBounds,
        toward: Floats,
        odds: Floats,
        by: Slopes,
    ) -> None:
        """Add derivatives, averaged over the posterior of each comparison. The second ones omit
        terms that could make them indefinite (Gauss-Newton).
        """
        j, strength = self.votes.annotator[part], self.votes.strength[part]
        leaning, tight = toward * self.votes.display_side[part], odds * (1.0 + odds)
        by_high, by_low = by.above[0] + odds, -(by.below[0] + odds)
        totals = (
            toward * (by.below[1] - by.above[1]),
            leaning * (by.below[0] - by.above[0]),
            by_high * ends.high_by[0] + by_low * ends.low_by[0],
            by_high * ends.high_by[1] + by_low * ends.low_by[1],
        )
        # Derivatives of the interval ends, relative to the feeling, by each parameter; that by the
        # discrimination is also multiplied by d.
        of_high = (-toward, -leaning, *ends.high_by)
        of_low = (-toward, -leaning, *ends.low_by)
        for p in self._free:
            np.add.at(sums.slope[:, p], j, totals[p])
            for q in self._free[self._free.index(p) :]:
                k = (p == DISCRIMINATION) + (q == DISCRIMINATION)
                both = (
                    by.curve_above[k] * of_high[p] * of_high[q]
                    + by.curve_below[k] * of_low[p] * of_low[q]
                )
                if p >= WIDTH:  # the other parameters do not change the width of the interval
                    both += tight * (of_high[p] - of_low[p]) * (of_high[q] - of_low[q])
                np.add.at(sums.curve[:, p, q], j, both)
        for step in range(
            len(sums.step_slope) if self.votes.has_strengths else 0
        ):  # upper end of strength step + 1 and lower end of the next
            ended, begun = strength == step + 1, strength == step + 2
            sums.step_slope[step] += (by_high * ends.scale)[ended].sum() + (by_low * ends.scale)[
                begun
            ].sum()
            sums.step_curve[step] += ((by.curve_above[0] + tight) * ends.scale**2)[ended].sum()
            sums.step_curve[step] += ((by.curve_below[0] + tight) * ends.scale**2)[begun].sum()


def _powers_of_difference(of_nodes: Floats, mean: Floats, sd: Floats) -> Floats:
    """Convert sums (n, 3) weighted by 1, x, x² to sums (3, n) weighted by 1, d, d², with d = mean +
    sd x.
    """
    unit, x, xx = of_nodes.T
    return np.stack([unit, mean * unit + sd * x, mean**2 * unit + 2 * mean * sd * x + sd**2 * xx])
