"""How often the cause of a change is named, and how many votes an unclear one waits for.

    python benchmarks/bench_causes.py [--seeds 50] [--more-seeds 200] [--first-seed 0]

The worlds and the decisions are those of the rows on causes of `rlhf lab suite`. Shown beside: the
causes found at the first tick after the confirmation, which is when a rule that does not wait
decides, and what is on top instead.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.intervals import interval_of_share  # noqa: E402
from rlhf_pipeline.laboratory.answered_changes import ChangeAnswer  # noqa: E402
from rlhf_pipeline.laboratory.cause_worlds import (  # noqa: E402
    NAMES,
    CauseWorld,
    draw_cause_world,
)
from rlhf_pipeline.laboratory.named_causes import PAIRS, answer_world, retrains  # noqa: E402
from rlhf_pipeline.records import CauseName  # noqa: E402
from rlhf_pipeline.retraining.triggers import name_careless  # noqa: E402

# Of worlds that retrain: at most of those with careless annotators, at least of another taste.
LIMITS: dict[CauseName, float] = {"carelessness": 0.02, "taste": 0.95}
CLEAR = 1.5  # times the smaller rise, from which the larger one is clear


Causes = tuple[CauseName, ...]


class Outcome(NamedTuple):
    drawn: CauseWorld
    answer: ChangeAnswer

    @property
    def is_right(self) -> bool:
        return self.answer.top == self.drawn.largest

    @property
    def is_right_at_first(self) -> bool:
        return self.answer.first.causes[0].name == self.drawn.largest

    @property
    def n_waited(self) -> int:
        return self.answer.decided_at - self.answer.confirmed_at


def observe(seed: int, causes: Causes, votes_per_comparison: int) -> Outcome | None:
    """None for a change that is not noticed."""
    drawn = draw_cause_world(causes, seed, votes_per_comparison=votes_per_comparison)
    answer = answer_world(drawn, seed)
    return None if answer is None else Outcome(drawn, answer)


Outcomes = dict[Causes, list[Outcome | None]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="worlds a cause")
    parser.add_argument(
        "--more-seeds", type=int, default=200, help="worlds of two causes, and of each retraining"
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--votes-per-comparison", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    limits = Limits()
    with ProcessPoolExecutor(given.processes) as pool:
        measure(pool, given, limits)
    return limits.print_summary()


def measure(pool: ProcessPoolExecutor, given: argparse.Namespace, limits: Limits) -> None:
    def run(choices: Sequence[Causes], n: int) -> Outcomes:
        """Seed n draws choice n modulo their number, as in the laboratory."""
        seeds = range(given.first_seed, given.first_seed + n)
        drawn = [choices[seed % len(choices)] for seed in seeds]
        one = partial(observe, votes_per_comparison=given.votes_per_comparison)
        found: Outcomes = {causes: [] for causes in choices}
        for causes, outcome in zip(drawn, pool.map(one, seeds, drawn, chunksize=5), strict=True):
            found[causes].append(outcome)
        return found

    retrained = {name: run([(name,)], given.more_seeds)[(name,)] for name in LIMITS}
    single: Outcomes = {}
    for name in NAMES:
        known = retrained.get(name, [])[: given.seeds]
        single[(name,)] = known or run([(name,)], given.seeds)[(name,)]
    print_outcomes("One cause", single)
    check_share(limits, "one cause: on top", single, 0.9)
    pairs = run(PAIRS, given.more_seeds)
    print_outcomes("Two causes", pairs)
    check_share(limits, "two causes: the larger on top", pairs, 0.8)
    clear = [
        one.is_right
        for one in noticed(pairs)
        if max(one.drawn.rises.values()) >= CLEAR * min(one.drawn.rises.values())
    ]
    share = interval_of_share(float(np.mean(clear)), len(clear))
    print(f"two causes: the larger, {CLEAR} times the other, on top in {share} of {len(clear)}")
    for name, limit in LIMITS.items():
        n = sum(one is not None and retrains(*one) for one in retrained[name])
        share = interval_of_share(n / given.more_seeds, given.more_seeds)
        is_met = share.value <= limit if name == "carelessness" else share.value >= limit
        limits.check(is_met, f"{name}: retrains in {share} of {given.more_seeds}, limit {limit}")
        waited = [one.n_waited for one in retrained[name] if one is not None]
        print(
            f"{name}: waits in {np.mean(np.array(waited) > 0):.2f}, votes: median "
            f"{np.median(waited):.0f}, 90 % {np.quantile(waited, 0.9):.0f}, most {max(waited)}"
        )
    print_named([one for one in retrained["carelessness"] if one is not None])


def print_named(found: Sequence[Outcome]) -> None:
    """How many of those whom a quarantine names are careless, and how many careless ones it names.
    Careless annotators have the first numbers.
    """
    named, careless, both, all_others = 0, 0, 0, 0
    for one in found:
        if one.answer.remedy != "quarantine":
            continue
        world = one.drawn.world
        n = max(1, round(world.changes[0].size * world.n_annotators))
        names = set(name_careless(one.answer.causes.causes[0]))
        named, careless = named + len(names), careless + n
        both += len(names & {f"annotator {i}" for i in range(n)})
        all_others += world.n_annotators - n
    print(
        f"quarantines: {both / named:.2f} of {named} named annotators are careless, "
        f"{both / careless:.2f} of {careless} careless ones and "
        f"{(named - both) / all_others:.2f} of {all_others} others are named"
    )


def noticed(outcomes: Outcomes) -> list[Outcome]:
    return [one for found in outcomes.values() for one in found if one is not None]


def check_share(
    limits: Limits,
    text: str,
    outcomes: Outcomes,
    least: float,
) -> None:
    found = noticed(outcomes)
    share, at_first = (
        interval_of_share(float(np.mean(right)), len(right))
        for right in ([o.is_right for o in found], [o.is_right_at_first for o in found])
    )
    limits.check(share.value >= least, f"{text} in {share}, limit {least}; at first in {at_first}")


def print_outcomes(title: str, outcomes: Outcomes) -> None:
    rows = []
    for causes, all_found in outcomes.items():
        found = [one for one in all_found if one is not None]
        waited = [one.n_waited for one in found]
        tops = Counter(one.answer.top for one in found)
        rows.append(
            [
                " + ".join(causes),
                f"{len(found)} of {len(all_found)}",
                f"{sum(one.is_right_at_first for one in found)}",
                f"{sum(one.is_right for one in found)}",
                f"{np.mean(np.array(waited) > 0):.2f}",
                f"{np.median(waited):.0f}, {np.quantile(waited, 0.9):.0f}, {max(waited)}",
                *(tops[name] or "" for name in NAMES),
            ]
        )
    columns = ("noticed", "right at first", "right", "share waiting", "votes: median, 90 %, most")
    print_table(title, ("causes", *columns, *NAMES), rows)


if __name__ == "__main__":
    sys.exit(main())
