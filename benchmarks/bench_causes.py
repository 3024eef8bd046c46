"""How often the cause of a detected change is named correctly: one cause, and two at once.

    python benchmarks/bench_causes.py [--seeds 50] [--pairs 20] [--more-votes 0]

Worlds, sizes and the vote of the change are drawn from ranges. The cause is named at the first
event after the change, as at the next tick: every 50 votes. Changes that are not detected are not
counted. A changed calibration raises no error rate, so its vote is given.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, get_args

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.drift.causes import find_causes  # noqa: E402
from rlhf_pipeline.drift.stream import scan  # noqa: E402
from rlhf_pipeline.intervals import interval_of_share  # noqa: E402
from rlhf_pipeline.records import CauseName, ChangeCauses  # noqa: E402
from rlhf_pipeline.retraining.triggers import RETRAINS, TriggerParams, choose_remedy  # noqa: E402
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes  # noqa: E402

NAMES: tuple[CauseName, ...] = get_args(CauseName)
VOTES_PER_TICK = 50  # RLHF_VOTES_PER_REQUEST
VOTES_AFTER = 1500
KNOWN_AFTER = 300  # votes after a changed calibration
HARDER = 0.2  # errors in the hard category, above those in others
CLEAR = 1.5  # times the smaller rise, from which the larger one is clear
TRIES = 6  # worlds a counted one


SPAM_WORLDS = 120  # worlds with careless annotators, in which nothing should retrain
FEW_RETRAINED = 0.02


class Outcome(NamedTuple):
    causes: ChangeCauses
    largest: str
    ratio: float  # of the two rises, the larger one over the other
    delay: int


def draw_world(
    causes: Sequence[CauseName], seed: int, votes_per_comparison: int
) -> tuple[VoteWorld, dict[CauseName, float]]:
    """A world in which `causes` happen at one vote, and by how much each raises the error rate."""
    rng = np.random.default_rng([seed, *(NAMES.index(cause) for cause in causes)])
    at = int(rng.integers(800, 2000))
    base, category = rng.uniform(0.15, 0.3), rng.uniform(0.1, 0.3)
    sizes: dict[CauseName, float] = {
        "taste": rng.uniform(0.08, 0.25),
        "category": 1.0,
        "newcomers": rng.uniform(0.3, 0.5),
        "carelessness": rng.uniform(0.2, 0.4),
        "mix": rng.uniform(0.4, 0.7),
        "calibration": rng.uniform(1.8, 3.0),
    }
    # Careless annotators have no taste. Newcomers' taste is the opposite of everybody's, also where
    # that has changed.
    new = sizes["newcomers"] * ("newcomers" in causes)
    careless = (1 - new) * sizes["carelessness"] * ("carelessness" in causes)
    hard = sizes["mix"] if "mix" in causes else 0.0
    harder = max(0.0, hard - 0.05) * HARDER
    remaining = 1 - new - careless
    rises: dict[CauseName, float] = {
        "taste": sizes["taste"] * remaining,
        "category": category * (1 - hard) * (1 - 2 * base) * remaining,
        "newcomers": new
        * (1 - category * ("category" in causes))
        * (1 - 2 * (base + harder) - sizes["taste"] * ("taste" in causes)),
        "carelessness": careless * (0.5 - base - harder),
        "mix": harder,
        "calibration": 0.0,
    }
    is_fast, one_sided = bool(rng.random() < 0.5), rng.uniform(0.5, 0.95)
    world = VoteWorld(
        n_votes=at + VOTES_AFTER,
        error_rate=base,
        votes_per_comparison=votes_per_comparison,
        n_annotators=int(rng.integers(12, 40)),
        first_category_share=category,
        changes=tuple(
            Change(cause=c, at=at, size=sizes[c], is_fast=is_fast, one_sided=one_sided)
            for c in causes
        ),
    )
    return world, {cause: rises[cause] for cause in causes}


def judge(
    seed: int, causes: tuple[CauseName, ...], *, more_votes: int, votes_per_comparison: int
) -> Outcome | None:
    """The causes named when the change is detected; None if it is not."""
    world, rises = draw_world(causes, seed, votes_per_comparison)
    at = world.changes[0].at
    votes = draw_votes(world, seed)
    change_seq, until = at + 1, at + KNOWN_AFTER
    if causes != ("calibration",):
        events = scan(votes, model_version=str(votes["reward_model"].iloc[0])).events
        found = [event for event in events if event.seq > at]
        if not found:
            return None
        change_seq = found[0].change_seq or found[0].seq
        until = -(-found[0].seq // VOTES_PER_TICK) * VOTES_PER_TICK
    known = votes[votes["seq"] <= until + more_votes]
    largest = max(causes, key=lambda cause: rises[cause])
    ratio = rises[largest] / max(min(rises.values()), 1e-9)
    return Outcome(find_causes(known, change_seq), largest, ratio, until - at)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="detected changes a cause")
    parser.add_argument("--pairs", type=int, default=20, help="detected changes a pair of causes")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--more-votes", type=int, default=0, help="known after the detection")
    parser.add_argument("--votes-per-comparison", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    limits = Limits()
    with ProcessPoolExecutor(given.processes) as pool:
        measure(pool, given, limits)
    return limits.print_summary()


def measure(pool: ProcessPoolExecutor, given: argparse.Namespace, limits: Limits) -> None:
    single = {name: detected(pool, given, (name,), given.seeds) for name in NAMES}
    print_single(single)
    right = [one.causes.causes[0].name == one.largest for o, _ in single.values() for one in o]
    share = interval_of_share(float(np.mean(right)), len(right))
    limits.check(share.value >= 0.9, f"one cause: on top in {share}, limit 0.90")
    check_retraining(pool, limits)
    pairs = {
        pair: detected(pool, given, pair, given.pairs)
        for pair in combinations([name for name in NAMES if name != "calibration"], 2)
        if given.pairs
    }
    if not pairs:
        limits.skip("two causes: --pairs 0")
        return
    print_pairs(pairs)
    both = [(one, pair) for pair, (found, _) in pairs.items() for one in found]
    right = [one.causes.causes[0].name == one.largest for one, _ in both]
    share = interval_of_share(float(np.mean(right)), len(right))
    limits.check(share.value >= 0.8, f"two causes: the larger on top in {share}, limit 0.80")
    clear = [one.causes.causes[0].name == one.largest for one, _ in both if one.ratio >= CLEAR]
    either = [one.causes.causes[0].name in pair for one, pair in both]
    for text, tops in ((f"the larger, {CLEAR} times the other", clear), ("either", either)):
        share = interval_of_share(float(np.mean(tops)), len(tops))
        print(f"two causes: {text}, on top in {share} of {len(tops)}")


def detected(
    pool: ProcessPoolExecutor, given: argparse.Namespace, causes: tuple[CauseName, ...], n: int
) -> tuple[list[Outcome], int]:
    """The outcomes of `n` detected changes, and how many worlds that took."""
    run = partial(
        judge,
        causes=causes,
        more_votes=given.more_votes,
        votes_per_comparison=given.votes_per_comparison,
    )
    found: list[Outcome] = []
    tried = 0
    while len(found) < n and tried < TRIES * n:
        seeds = range(given.first_seed + tried, given.first_seed + tried + n - len(found))
        found += [one for one in pool.map(run, seeds, chunksize=5) if one is not None]
        tried += len(seeds)
    return found, tried


def check_retraining(pool: ProcessPoolExecutor, limits: Limits) -> None:
    """How many worlds with careless annotators, and how many with another taste, retrain."""
    shares = {}
    for cause in ("carelessness", "taste"):
        run = partial(judge, causes=(cause,), more_votes=0, votes_per_comparison=1)
        found = list(pool.map(run, range(1000, 1000 + SPAM_WORLDS), chunksize=5))
        retrains = [
            one is not None and choose_remedy(one.causes, TriggerParams()) in RETRAINS
            for one in found
        ]
        shares[cause] = interval_of_share(float(np.mean(retrains)), SPAM_WORLDS)
    limits.check(
        shares["carelessness"].value <= FEW_RETRAINED,
        f"careless annotators: retrains in {shares['carelessness']}, limit {FEW_RETRAINED}",
    )
    print(f"another taste: retrains in {shares['taste']}")


def print_single(outcomes: dict[CauseName, tuple[list[Outcome], int]]) -> None:
    rows = []
    for name, (found, tried) in outcomes.items():
        tops = Counter(one.causes.causes[0].name for one in found)
        shares = [c.share for one in found for c in one.causes.causes if c.name == name]
        rows.append(
            [
                name,
                f"{len(found)} of {tried}",
                f"{np.median([one.delay for one in found]):.0f}",
                str(interval_of_share(tops[name] / len(found), len(found))),
                *(tops[other] or "" for other in NAMES),
                f"{np.mean(shares):.2f}",
            ]
        )
    print_table(
        "One cause",
        ("cause", "detected", "votes after, median", "on top", *NAMES, "mean share of the cause"),
        rows,
    )


def print_pairs(outcomes: dict[tuple[CauseName, ...], tuple[list[Outcome], int]]) -> None:
    rows = []
    for pair, (found, tried) in outcomes.items():
        tops = [one.causes.causes[0].name for one in found]
        larger = np.mean([top == one.largest for top, one in zip(tops, found, strict=True)])
        rows.append(
            [
                " + ".join(pair),
                f"{len(found)} of {tried}",
                str(interval_of_share(float(larger), len(found))),
                f"{np.mean([top in pair for top in tops]):.2f}",
            ]
        )
    print_table("Two causes", ("causes", "detected", "larger on top", "either on top"), rows)


if __name__ == "__main__":
    sys.exit(main())
