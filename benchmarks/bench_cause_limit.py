"""How soon anybody could tell a change of everybody's taste from careless annotators.

    python benchmarks/bench_cause_limit.py

The judge knows what the trigger has to learn: the vote at which the change began, the chance that
the model errs on each vote, and the prior odds of both worlds. In one everybody's error rate rises
by .10; in the other 40 % of the annotators vote at random, at their usual pace and for no side,
which raises it as much. Each vote is on a comparison of its own.
"""

import argparse
import sys

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp

from benchmarks.measurement import Limits, print_table
from rlhf_pipeline.retraining.triggers import TriggerParams

Floats = npt.NDArray[np.float64]
RATE, KNOWN_SPREAD = 0.25, 0.55  # of errors; of their known log odds
RISE, SHARE = 0.10, 0.40  # of the error rate; of careless annotators
RISES, SHARES = (0.05, 0.1, 0.15, 0.2), (0.25, 0.4)  # that the judge thinks possible
N_ANNOTATORS = 30
N_VOTES = (100, 200, 300, 400, 600)  # after the change
ODDS_OF_CARELESS = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=2000)
    n_worlds = parser.parse_args().worlds
    doubt = 1 - TriggerParams().min_annotator_certainty
    rng = np.random.default_rng(1)
    rows = []
    for n in N_VOTES:
        of_taste, of_careless = (
            np.array([judge(*draw(rng, n, is_careless=careless)) for _ in range(n_worlds)])
            for careless in (False, True)
        )
        clear, wrong = ((of <= doubt).mean() for of in (of_taste, of_careless))
        rows.append((n, f"{clear:.2f}", f"{wrong:.3f}"))
    header = ("votes after the change", "taste is clear", "careless annotators taken for it")
    print_table(f"A judge who knows the rates, {1 - doubt:.0%} certain", header, rows)
    return Limits().print_summary()


def draw(rng: np.random.Generator, n: int, *, is_careless: bool) -> tuple[Floats, Floats, Floats]:
    """Annotator, known chance of an error and error of each vote (n,)."""
    annotator = rng.integers(0, N_ANNOTATORS, n)
    usual = expit(np.log(RATE / (1 - RATE)) + rng.normal(0, KNOWN_SPREAD, n))
    if is_careless:
        careless = rng.random(N_ANNOTATORS) < SHARE
        chance = np.where(careless[annotator], 0.5, usual)
    else:
        chance = usual + RISE
    return annotator, usual, rng.random(n) < chance


def judge(annotator: Floats, usual: Floats, error: Floats) -> float:
    """The probability that careless annotators are behind the change."""

    def by_annotator(chance: Floats) -> Floats:
        likelihood = np.where(error, np.log(chance), np.log(1 - chance))
        return np.bincount(annotator, likelihood, minlength=N_ANNOTATORS)

    taste = [by_annotator(np.clip(usual + rise, 0.02, 0.98)).sum() for rise in RISES]
    careful, at_random = by_annotator(usual), by_annotator(np.full(len(usual), 0.5))
    careless = [
        np.logaddexp(np.log(1 - share) + careful, np.log(share) + at_random).sum()
        for share in SHARES
    ]
    log_odds = logsumexp(careless) - np.log(len(SHARES)) - logsumexp(taste) + np.log(len(RISES))
    return float(expit(log_odds + np.log(ODDS_OF_CARELESS)))


if __name__ == "__main__":
    sys.exit(main())
