"""A gate that asks people: does its interval hold the truth, and how many votes does it need?

    python benchmarks/bench_gate.py [--releases 200] [--prompts 2000]

Simulated releases in cells of the true win rate and of the judge's accuracy against single votes.
Each draws from ranges how often people agree and tie, the judge's noise, its liking of the
candidate's length and its overconfidence; no constant is the demo simulator's. A session reads the
votes in batches, so votes are those up to the batch in which the interval excludes one half, with
the judge and by the same sequence without it; coverage is the share of releases whose interval then
holds the truth. Exits with 1 where a limit is broken.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402

silence_telemetry()

from dataclasses import dataclass  # noqa: E402

import numpy as np  # noqa: E402
from scipy.optimize import brentq  # noqa: E402
from scipy.special import expit  # noqa: E402

from benchmarks.measurement import print_table  # noqa: E402
from rlhf_pipeline.core.intervals import Floats  # noqa: E402
from rlhf_pipeline.improve.evaluation.people_win_rate import (  # noqa: E402
    PeopleEstimate,
    estimate_people_win_rate,
)
from rlhf_pipeline.improve.gate_sessions import BATCH  # noqa: E402

RATES = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65)
ACCURACIES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
MAX_VOTES = 6_000


@dataclass(frozen=True)
class World:
    """People's chance to prefer the candidate where they do not tie, and the judge's probability of
    it, both (N,); the chance of a tie.
    """

    people: Floats
    judge: Floats
    ties: float


@dataclass(frozen=True)
class Outcome:
    """What one release came to, with the judge and by votes alone."""

    holds: bool
    promoted: bool
    n_votes: int
    n_alone: int


def make_world(rate: float, accuracy: float, n_prompts: int, rng: np.random.Generator) -> World:
    """A world whose true win rate is exactly `rate`, and whose judge agrees with `accuracy` of
    single votes, as far as its bias allows.
    """
    ties = rng.uniform(0, 0.25)
    decisive_rate = 0.5 + (rate - 0.5) / (1 - ties)
    agreement = rng.uniform(max(accuracy + 0.01, 0.72), 0.92)
    shape = rng.standard_normal(n_prompts)

    def utilities(spread: float) -> Floats:
        gaps = spread * shape
        return gaps + brentq(lambda m: expit(gaps + m).mean() - decisive_rate, -300, 300)

    def excess_agreement(spread: float) -> float:
        chances = expit(utilities(spread))
        return float(np.maximum(chances, 1 - chances).mean()) - agreement

    spread = brentq(excess_agreement, 0.01, 60)
    gaps = utilities(spread)
    people, noise = expit(gaps), rng.standard_normal(n_prompts)
    bias = rng.choice((0.0, rng.uniform(0.1, 0.6) * spread))  # likes the longer candidate

    def excess_accuracy(scale: float) -> float:
        is_candidate = gaps + bias + scale * noise > 0
        return float(np.where(is_candidate, people, 1 - people).mean()) - accuracy

    # A bias alone may cost more accuracy than noise may
    scale = brentq(excess_accuracy, 0, 400 * spread) if excess_accuracy(0) > 0 else 0.0
    sharpness = spread**2 / (spread**2 + scale**2) * rng.uniform(0.7, 1.8)
    return World(people, expit(sharpness * (gaps + bias + scale * noise)), ties)


def run_release(world: World, rng: np.random.Generator) -> Outcome:
    """Deal prompts with replacement until the gate's interval excludes one half."""
    truth = world.ties / 2 + (1 - world.ties) * world.people.mean()
    dealt = rng.integers(len(world.people), size=MAX_VOTES)
    votes = (rng.random(MAX_VOTES) < world.people[dealt]).astype(float)
    votes[rng.random(MAX_VOTES) < world.ties] = 0.5

    def read(n_votes: int, judge: Floats) -> PeopleEstimate:
        return estimate_people_win_rate(
            votes[:n_votes], judge[dealt[:n_votes]], judge, batch_size=BATCH
        )

    def find_stop(judge: Floats) -> int:
        """The end of the batch in which it decides."""
        decided_at = None
        for n_votes in (MAX_VOTES // 16, MAX_VOTES // 4, MAX_VOTES):
            decided_at = decided_at or read(n_votes, judge).decided_at
        return -(-(decided_at or MAX_VOTES) // BATCH) * BATCH

    stop = find_stop(world.judge)
    at_stop = read(stop, world.judge)
    return Outcome(
        holds=at_stop.win_rate.low <= truth <= at_stop.win_rate.high,
        promoted=at_stop.decision == "better",
        n_votes=stop,
        n_alone=find_stop(np.full(len(world.judge), 0.5)),
    )


def check_limits(cells: dict[tuple[float, float], list[Outcome]]) -> list[tuple[str, str, str]]:
    """Each limit with its figure; the third column is `broken` where it is."""

    def mean(cell: tuple[float, float], name: str) -> float:
        return float(np.mean([getattr(outcome, name) for outcome in cells[cell]]))

    def ratio(*keys: tuple[float, float]) -> float:
        return sum(mean(k, "n_votes") for k in keys) / sum(mean(k, "n_alone") for k in keys)

    clear = [rate for rate in RATES if rate != 0.5]
    middle = [rate for rate in clear if rate <= 0.6]
    at_best = [ratio((0.85, rate)) for rate in middle]
    alone = {
        rate: max(mean((accuracy, rate), "n_alone") for accuracy in ACCURACIES)
        for rate in (0.6, 0.55)
    }
    figures = [
        ("lowest coverage", min(mean(k, "holds") for k in cells), ">=", 0.93),
        ("highest share promoted, rate <= .5",
         max(mean(k, "promoted") for k in cells if k[1] <= 0.5), "<=", 0.025),
        ("votes of votes alone, judge .75", ratio(*[(0.75, rate) for rate in middle]), "<=", 0.85),
        ("the same, judge .85, mean", float(np.mean(at_best)), "<=", 0.6),
        ("the same, judge .85, worst", max(at_best), "<=", 0.7),
        ("the same, worst of all cells", max(ratio(k) for k in cells if k[1] != 0.5), "<=", 1.05),
        ("votes alone at .60, worst", alone[0.6], "<=", 280),
        ("votes alone at .55, worst", alone[0.55], "<=", 950),
    ]  # fmt: skip
    return [
        (
            name,
            f"{figure:.3g}",
            f"{sign} {limit:g}"
            if (figure >= limit if sign == ">=" else figure <= limit)
            else f"{sign} {limit:g} broken",
        )
        for name, figure, sign, limit in figures
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=2000)
    arguments = parser.parse_args()
    cells = {}
    for accuracy in ACCURACIES:
        for rate in RATES:
            rng = np.random.default_rng([int(1000 * accuracy), int(1000 * rate)])
            cells[accuracy, rate] = [
                run_release(make_world(rate, accuracy, arguments.prompts, rng), rng)
                for _ in range(arguments.releases)
            ]
    columns = ("holds", "promoted", "n_votes", "n_alone")
    means = {
        k: [np.mean([getattr(o, c) for o in cell]) for c in columns] for k, cell in cells.items()
    }
    print_table(
        f"{arguments.releases} releases a cell, {arguments.prompts} prompts",
        ("judge", "true rate", "coverage", "promoted", "votes", "votes alone", "ratio"),
        [
            (f"{k[0]:.2f}", f"{k[1]:.2f}", f"{m[0]:.3f}", f"{m[1]:.3f}", f"{m[2]:.0f}",
             f"{m[3]:.0f}", f"{m[2] / m[3]:.2f}")
            for k, m in means.items()
        ],
    )  # fmt: skip
    limits = check_limits(cells)
    print_table("Limits", ("figure", "value", "limit"), limits)
    if any("broken" in row[2] for row in limits):
        sys.exit(1)


if __name__ == "__main__":
    main()
