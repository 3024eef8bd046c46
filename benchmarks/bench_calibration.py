"""Calibration where the truth is known: how often its tests fire, what a calibrator mends, how near
the noise ceiling is found. Prints tables.

    python benchmarks/bench_calibration.py [--seeds 200] [--bound 0.05]

Simulated: a comparison's true log odds are normal, a vote is one draw, and a model states those log
odds with an error and a boldness of its own, as benchmarks/simulation.yaml says. Needs no data, no
model and no key. Everything is computed by the parts the pipeline uses; three seeds, median and
range, and 95 % intervals of the first seed. Each model's test split is opened once, on record.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.opening_log import OpeningLog, add_registry_option  # noqa: E402
from benchmarks.simulation import read_simulation, simulation_hash  # noqa: E402
from rlhf_pipeline.calibration import (  # noqa: E402
    CalibrationThresholds,
    calibrate,
    ece_lower_bound,
    overconfidence_test,
)
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame  # noqa: E402
from rlhf_pipeline.intervals import wilson_bounds  # noqa: E402
from rlhf_pipeline.records import CalibrationReport  # noqa: E402
from rlhf_pipeline.reward_model import preference_probability  # noqa: E402
from rlhf_pipeline.votes import ceilings  # noqa: E402
from tests.unit.votes.simulated import votes_of  # noqa: E402

Floats = npt.NDArray[np.float64]

SIMULATED = read_simulation().calibration
SEEDS = SIMULATED.seeds
N_OF_TRIGGER = SIMULATED.trigger.n_votes
HOLDOUT = SIMULATED.holdout.n_comparisons
FLIPS = SIMULATED.ceiling.flips
UNEQUAL = ((2, 3, 5, 9), (5, 7, 9))  # votes of a comparison, as many comparisons of each
AT_MOST = 0.05
AT_LEAST = 0.90
FALL = 0.30
POINTS = 0.03
HELD = 0.85


def world(
    seed: int, n: int, *, boldness: float, sd: float, votes: int = 1
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Stated probabilities of n votes, what these were, and which comparison each is of; `sd` of
    the true log odds.
    """
    rng = np.random.default_rng(seed)
    of = np.arange(n) // votes
    log_odds = rng.normal(0, sd, of.max() + 1)[of]
    return (
        preference_probability(boldness * log_odds),
        (rng.random(n) < preference_probability(log_odds)).astype(np.float64),
        of,
    )


def trigger(limits: Limits, n_seeds: int) -> None:
    """How often the tests of a day fire: of the slope as it triggers retraining, and of the ECE's
    lower bound beside it.
    """
    level = CalibrationThresholds().slope_level
    rows: list[tuple[object, ...]] = []
    for boldness in SIMULATED.trigger.stated:
        for sd, votes in SIMULATED.trigger.streams:
            days = [
                world(seed, N_OF_TRIGGER, boldness=boldness, sd=sd, votes=votes)
                for seed in range(n_seeds)
            ]
            fired = [overconfidence_test(p, y, groups=of, level=level).fires for p, y, of in days]
            ece = [
                ece_lower_bound(p, y, groups=of) > CalibrationThresholds().ece_at_most
                for p, y, of in days
            ]
            rows.append((f"× {boldness:g}", sd, votes, _share(fired), _share(ece)))
            if boldness == 1.0 or boldness >= 2.0:
                share = float(np.mean(fired))
                which = f"log odds × {boldness:g}, sd {sd:g}, {votes} votes a comparison"
                held = share <= AT_MOST if boldness == 1.0 else share >= AT_LEAST
                bar = f"at most {AT_MOST:.0%}" if boldness == 1.0 else f"at least {AT_LEAST:.0%}"
                limits.check(
                    held,
                    f"{which}: the slope test fires on {share:.1%} of {n_seeds} streams of "
                    f"{N_OF_TRIGGER} votes, {bar}",
                )
    print_table(
        f"Streams of {N_OF_TRIGGER} votes that fire, {n_seeds} seeds, with the 95 % interval of "
        "that share",
        (
            "stated log odds",
            "sd of the true ones",
            "votes a comparison",
            f"slope below 1, one-sided at {level:g}",
            "ECE's lower bound above 0.05",
        ),
        rows,
    )


class Stating:
    """A reward model that states `boldness` times what it believes of each text."""

    def __init__(self, beliefs: dict[str, float], boldness: float) -> None:
        self.beliefs, self.boldness = beliefs, boldness

    def score(self, prompts: Sequence[str], completions: Sequence[str], **_: object) -> Floats:
        return self.boldness * np.array([self.beliefs[text] for text in completions])


def holdout(seed: int, boldness: float, looks: OpeningLog) -> CalibrationReport:
    """Comparisons of several votes to calibrate on and as many to judge on, two of a prompt, by a
    model that errs.
    """
    rng, world = np.random.default_rng(seed), SIMULATED.holdout
    n, each = 2 * world.n_comparisons, world.votes_each
    odds = rng.normal(0, world.sd, n)
    beliefs = odds + rng.normal(0, world.error_sd, n)
    n_a = rng.binomial(each, preference_probability(odds))
    is_a = 2 * n_a > each
    names = [f"c{i:05d}" for i in range(n)]
    pairs = pd.DataFrame(
        {
            "day": "2026-01-01",
            "comparison_id": names,
            "prompt_id": [f"p{i // 2}" for i in range(n)],
            "prompt": "q",
            "chosen": [f"{c} {'a' if a else 'b'}" for c, a in zip(names, is_a, strict=True)],
            "rejected": [f"{c} {'b' if a else 'a'}" for c, a in zip(names, is_a, strict=True)],
            "margin": 0.5,
            "agreement": np.maximum(n_a, each - n_a) / each,
            "n_votes": each,
            "chosen_side": np.where(is_a, "a", "b"),
            "annotator_kind": "simulated",
            "category": "factual",
            "split": np.where(np.arange(n) < HOLDOUT, "calib", "test"),
            "max_seq": np.arange(1, n + 1),
        }
    )
    told = {f"{c} a": float(b) for c, b in zip(names, beliefs, strict=True)} | {
        f"{c} b": 0.0 for c in names
    }
    return calibrate(
        check_frame(pairs, PREFERENCE_PAIRS),
        Stating(told, boldness),
        reward_model_label=f"simulated, × {boldness:g}, seed {seed}",  # type: ignore[arg-type]
        data_hash="",
        record=looks.record,
    )[1]


def mended(limits: Limits, bound: float, looks: OpeningLog) -> None:
    rows: list[tuple[object, ...]] = []
    for boldness in SIMULATED.holdout.stated:
        reports = [holdout(seed, boldness, looks) for seed in SEEDS]
        first = reports[0]
        before, after = ([_ece(r, which) for r in reports] for which in ("raw", "calibrated"))
        plain = [r.calibrated.ece_equal_mass.value for r in reports]
        falls = [1 - a / b for a, b in zip(after, before, strict=True)]
        rows.append(
            (
                f"× {boldness:g}",
                ", ".join(sorted({r.method for r in reports})),
                _range(before),
                _range(after),
                first.calibrated.ece_debiased,
                _range(plain),
                first.raw.slope,
                first.calibrated.slope,
            )
        )
        name = f"{HOLDOUT} held-out comparisons, belief × {boldness:g}"
        ends = first.calibrated.ece_equal_mass
        limits.check(
            float(np.median(plain)) <= bound,
            f"{name}: ECE after calibration {_range(plain)}, its noise included, one seed with its "
            f"interval {ends}, at most {bound:g}",
        )
        if boldness > 1:
            limits.check(
                float(np.median(falls)) >= FALL,
                f"{name}: ECE without its noise falls by {_range(falls)}, at least {FALL:.0%}",
            )
    print_table(
        f"Calibrated on {HOLDOUT} comparisons of {SIMULATED.holdout.votes_each} votes, judged on "
        f"{HOLDOUT} others: median [range] of {len(SEEDS)} seeds, and one with its interval",
        (
            "stated",
            "by",
            "ECE before",
            "ECE after",
            "one seed",
            "after, noise included",
            "slope before, one seed",
            "slope after",
        ),
        rows,
    )


def ceiling(limits: Limits, n_seeds: int) -> None:
    """Annotators who see the better side and take the other by mistake; they judge comparisons, and
    again with sides swapped.
    """
    rows: list[tuple[object, ...]] = []
    for n in SIMULATED.ceiling.n_repeats:
        found = [_from_repeats(seed, n) for seed in range(n_seeds)]
        values = np.array([value for value, _, _ in found])
        near = np.abs(values - (1 - FLIPS)) <= POINTS
        inside = [low <= 1 - FLIPS <= high for _, low, high in found]
        value, low, high = found[0]
        rows.append(
            (
                n,
                _range(values[: len(SEEDS)]),
                f"{value:.3f} [{low:.3f}, {high:.3f}]",
                _share(near),
                _share(inside),
            )
        )
        worst = float(np.abs(values[: len(SEEDS)] - (1 - FLIPS)).max())
        limits.check(
            worst <= POINTS,
            f"{n} repeats at {FLIPS:.0%} flips: the ceiling is {worst:.3f} off at most in three "
            f"seeds, limit {POINTS}",
        )
    print_table(
        f"The noise ceiling from repeats, {1 - FLIPS:.2f} in truth: three seeds, and of {n_seeds} "
        "how many come near and whose intervals hold it",
        ("repeats", "median [range]", "one seed", f"within {POINTS}", "truth inside"),
        rows,
    )


def print_ceilings(limits: Limits, n_seeds: int) -> None:
    """What stands beside accuracies, where several people judge each comparison once. How
    comparisons differ is not told by two or three votes.
    """
    rows: list[tuple[object, ...]] = []
    crowds = [(n, (each,)) for n, each in ((2000, 2), (2000, 3), (2000, 5), (450, 5), (450, 9))]
    for n, each in [*crowds, *((n, each) for n in (2000, 450) for each in UNEQUAL)]:
        found = [_from_overlaps(seed, n, each) for seed in range(n_seeds)]
        values = np.array([value for _, value, _, _ in found])
        inside = [low <= 1 - FLIPS <= high for _, _, low, high in found]
        least, value, low, high = found[0]
        by = " or ".join(map(str, each))
        rows.append(
            (
                f"{n:,} by {by}",
                f"{least:.3f}",
                _range(values[: len(SEEDS)]),
                f"{value:.3f} [{low:.3f}, {high:.3f}]",
                _share(inside),
            )
        )
        if min(each) >= 5:
            worst = float(np.abs(values[: len(SEEDS)] - (1 - FLIPS)).max())
            limits.check(
                worst <= POINTS,
                f"{n:,} comparisons of {by} votes: what is shown is {worst:.3f} off at most, limit "
                f"{POINTS}",
            )
        held = float(np.mean(inside))
        limits.check(
            held >= HELD,
            f"{n:,} comparisons of {by} votes: {held:.1%} of the intervals hold {1 - FLIPS:.2f}, "
            f"limit {HELD:.0%}",
        )
    print_table(
        f"The ceiling that is shown, {1 - FLIPS:.2f} in truth: three seeds, and of {n_seeds} how "
        "many hold it",
        ("comparisons", "at_least", "shown: median [range]", "one seed", "truth inside"),
        rows,
    )


def _from_overlaps(seed: int, n: int, each: Sequence[int]) -> tuple[float, float, float, float]:
    """Of `n` comparisons that have these numbers of votes in turn."""
    rng = np.random.default_rng(seed)
    n_votes = np.resize(each, n)
    which = np.repeat(np.arange(n), n_votes)
    is_a = (rng.random(n) < 0.5)[which] ^ (rng.random(len(which)) < FLIPS)
    annotator = np.concatenate([np.arange(of) for of in n_votes])
    row = ceilings(votes_of(which, annotator, np.where(is_a, "a", "b"), prompt=which)).iloc[0]
    return (
        float(row["at_least"]),
        float(row["estimate"]),
        float(row["estimate_low"]),
        float(row["estimate_high"]),
    )


def _from_repeats(seed: int, n: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    better_is_a = rng.random(n) < 0.5
    said, again = (better_is_a ^ (rng.random(n) < FLIPS) for _ in range(2))
    numbers = np.arange(n)
    first = votes_of(
        numbers, numbers % SIMULATED.ceiling.n_annotators, np.where(said, "a", "b"), prompt=numbers
    )
    # Shown with sides swapped, what was a is b.
    second = first.assign(
        repeat_of=first["comparison_id"],
        comparison_id="r" + first["comparison_id"],
        vote_id="r" + first["vote_id"],
        seq=first["seq"] + n,
        choice=np.where(again, "b", "a"),
    )
    row = ceilings(pd.concat([first, second], ignore_index=True)).iloc[0]
    return (
        float(row["from_repeats"]),
        float(row["from_repeats_low"]),
        float(row["from_repeats_high"]),
    )


def _ece(report: CalibrationReport, which: str) -> float:
    found = getattr(report, which).ece_debiased
    assert found is not None
    return float(found.value)


def _share(fired: Sequence[bool] | npt.NDArray[np.bool_]) -> str:
    low, high = wilson_bounds(float(np.mean(fired)), len(fired))
    return f"{np.mean(fired):.1%} [{low:.1%}, {high:.1%}]"


def _range(values: Sequence[float] | Floats) -> str:
    return f"{np.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument(
        "--bound", type=float, default=0.05, help="what the ECE of a calibrated model may be"
    )
    add_registry_option(parser)
    given = parser.parse_args()
    limits, looks = Limits(), OpeningLog(given.registry)
    print(f"Simulated worlds: parameters {simulation_hash()[:12]}")
    trigger(limits, given.seeds)
    mended(limits, given.bound, looks)
    ceiling(limits, given.seeds)
    print_ceilings(limits, min(given.seeds, 60))
    looks.print_openings()
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
