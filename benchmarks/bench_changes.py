"""How often detection, causes and the trigger are right in worlds that share nothing with
`simulation/`: false alarms and retrainings, power, dates and causes. Prints tables with limits.

    python benchmarks/bench_changes.py [steady] [power] [causes] [--streams 200] [--processes 2]

Nothing may be tuned on these rows; what a row draws stands in `other_worlds.py`. An alarm is not
yet a retraining: bursts of careless votes do raise the error rate, and their cause has to stop it.
Retrainings are those of all detectors at their defaults and of the trigger, decided every 50 votes.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.other_worlds import DrawnWorld, draw_votes, draw_world  # noqa: E402
from benchmarks.trigger_runs import Response, TriggerRun  # noqa: E402
from rlhf_pipeline.improve.retraining.triggers import ASKING_REMEDIES  # noqa: E402
from rlhf_pipeline.watch.drift.base import Signal  # noqa: E402
from rlhf_pipeline.watch.drift.sequential_test import (  # noqa: E402
    SequentialTest,
    SequentialTestParams,
)
from rlhf_pipeline.watch.drift.stream import reference_votes, stream_votes  # noqa: E402

# row -> most retrainings per 1,000 votes; alarms are printed
STEADY: dict[str, float | None] = {
    "independent": 0.03,
    "three in a row": 0.03,
    "five in a row": 0.03,
    "week +.05": 0.03,
    "sessions": 0.03,
    "one casts 40 %": 0.03,
    "week +.10": 0.08,
    "topic a day": 0.08,
    "topic a day, unknown": None,
    "teams": 0.08,
    "days sd .02": 0.08,
    "days sd .04": 0.08,
    "bursts": 0.08,
}
AT = 2000  # the vote of the change in rows of power
# row -> kind of world, votes within which an alarm must come, least share, what is changed
POWER: dict[str, tuple[str, int, float, dict[str, Any]]] = {
    "+.10": ("independent", 500, 0.80, {"change": "taste", "rise": 0.10}),
    "+.10 in sessions": ("sessions", 500, 0.65, {"change": "taste", "rise": 0.10}),
    "+.15": ("independent", 500, 0.90, {"change": "taste", "rise": 0.15}),
    "a category turns": ("independent", 500, 0.95, {"change": "category", "rise": 1.0}),
    "+.05": ("independent", 2500, 0.70, {"change": "taste", "rise": 0.05}),
    "new model, reference 300": (
        "independent",
        1000,
        0.90,
        {"change": "taste", "rise": 0.15, "n_reference": 300, "at": 0},
    ),
    "new model, reference 50": (
        "independent",
        1000,
        0.80,
        {"change": "taste", "rise": 0.15, "n_reference": 50, "at": 0},
    ),
}
POWER_RATE = 0.22  # of errors before the change, about .25 with the model's own
# row -> least share of worlds in which its cause, the first word, is answered; what is changed
CAUSES: dict[str, tuple[float | None, dict[str, Any]]] = {
    "taste": (0.85, {"change": "taste"}),
    "taste in a crowd": (0.85, {"change": "taste", "rise": 0.15, "n_people": 400}),
    "category": (0.85, {"change": "category", "rise": 1.0}),
    "newcomers": (0.85, {"change": "newcomers"}),
    "newcomers of the same taste": (None, {"change": "newcomers", "rise": 0.0}),
    "carelessness": (0.70, {"change": "carelessness", "careless": "random"}),
    "carelessness, shown left": (0.70, {"change": "carelessness", "careless": "left"}),
    "carelessness, longer": (0.70, {"change": "carelessness", "careless": "longer"}),
    "calibration": (0.85, {"change": "calibration"}),
}
MOST_NAMED = 0.05  # share of worlds without careless people in which a person is asked about some
ANSWERED_WITHIN = 1500


def find_alarms(drawn: DrawnWorld) -> list[Signal]:
    test = SequentialTest(SequentialTestParams())
    reference = reference_votes(drawn.reference)
    return list(test.find_rises(stream_votes(drawn.votes), reference))


def count_alarms(seed: int, kind: str) -> tuple[int, int]:
    """Alarms of the sequential test, and retrainings of the whole."""
    drawn = draw_votes(draw_world(kind, seed), seed)
    n_retrainings = sum(response.retrains for response in find_responses(drawn))
    return len(find_alarms(drawn)), n_retrainings


def find_responses(drawn: DrawnWorld) -> list[Response]:
    """What the trigger does; the model after a retraining has the same reference."""
    votes = drawn.votes.assign(published_id=drawn.votes["comparison_id"])
    run = TriggerRun(votes, lambda _: drawn.reference, tests_calibration=False)
    return list(iter(run.respond, None))


class Delay(NamedTuple):
    """Votes from the change to the alarm, by how many it is dated wrongly, and whether the trigger
    retrains.
    """

    alarm: int
    date: int
    retrains: bool


def find_delay(seed: int, row: str) -> Delay | None:
    """None without an alarm."""
    kind, within, _, changed = POWER[row]
    at = changed.get("at", AT)
    world = draw_world(
        kind, seed, **{"at": at, "n_votes": at + within, "error_rate": POWER_RATE, **changed}
    )
    drawn = draw_votes(world, seed)
    alarms = [alarm for alarm in find_alarms(drawn) if alarm.seq > at]
    if not alarms:
        return None
    retrains = any(
        response.retrains and response.confirmed_seq > at for response in find_responses(drawn)
    )
    return Delay(alarms[0].seq - at, alarms[0].change_seq - at, retrains)


def name_cause(seed: int, row: str) -> tuple[str, bool]:
    """The cause that the trigger answers first; whether it asks about innocent people."""
    rng = np.random.default_rng([seed, 5])
    at = int(rng.integers(800, 2500))
    drawn_constants = {
        "at": at,
        "n_votes": at + ANSWERED_WITHIN,
        "error_rate": float(rng.uniform(0.15, 0.25)),
        "rise": float(rng.uniform(0.1, 0.25)),
        "onset": int(rng.integers(0, 2)) * int(rng.uniform(50, 500)),
        "share_of_people": float(rng.uniform(0.3, 0.6)),
    }
    kind = "sessions" if seed % 2 else "independent"
    world = draw_world(kind, seed, **{**drawn_constants, **CAUSES[row][1]})
    drawn = draw_votes(world, 2000 + seed)
    answered = [
        response
        for response in find_responses(drawn)
        if response.confirmed_seq > at and response.remedy
    ]
    if not answered:
        return "unanswered", False
    causes = answered[0].causes
    suspects = set(causes.causes[0].evidence.get("annotator_ids", ())) if causes else set()
    asks = answered[0].remedy in ASKING_REMEDIES
    return answered[0].cause, asks and not suspects <= drawn.changed_people


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part", choices=[*PARTS, []], help="default: all"
    )
    parser.add_argument("--streams", type=int, default=200, help="a row")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    limits = Limits()
    with ProcessPoolExecutor(options.processes) as pool:
        run = partial(pool.map, chunksize=4)
        seeds = range(options.streams)
        for part in options.parts or PARTS:
            PARTS[part](run, seeds, limits)
    return limits.print_summary()


def measure_steady(run: Any, seeds: Sequence[int], limits: Limits) -> None:
    rows = []
    for kind, most in STEADY.items():
        counts = np.array(list(run(partial(count_alarms, kind=kind), seeds)))
        alarms, retrainings = counts.sum(axis=0) / (len(seeds) * 5)
        verdict = _judge(limits, kind, retrainings, most, is_most=True)
        rows.append((kind, f"{alarms:.3f}", f"{retrainings:.3f}", *verdict))
    header = ("row", "alarms", "retrainings", "limit", "")
    print_table("per 1,000 votes where nothing changes", header, rows)


def measure_power(run: Any, seeds: Sequence[int], limits: Limits) -> None:
    rows = []
    for name, (_, within, least, _) in POWER.items():
        delays = [each for each in run(partial(find_delay, row=name), seeds) if each]
        share = len(delays) / len(seeds)
        retrained = sum(each.retrains for each in delays) / len(seeds)
        wrong = np.percentile([each.date for each in delays], [10, 50, 90]) if delays else []
        dates = ", ".join(f"{each:+.0f}" for each in wrong)
        verdict = _judge(limits, name, share, least, is_most=False)
        rows.append((name, within, f"{share:.2f}", *verdict, f"{retrained:.2f}", dates))
    dated = "dated by votes: 10, 50, 90 %"
    header = ("change", "within", "found", "limit", "", "retrained by then", dated)
    print_table("changes found", header, rows)


def measure_causes(run: Any, seeds: Sequence[int], limits: Limits) -> None:
    rows = []
    for name, (least, changed) in CAUSES.items():
        answers = list(run(partial(name_cause, row=name), seeds))
        tops = Counter(top for top, _ in answers)
        share = tops[name.split()[0].strip(",")] / len(seeds)
        innocent_share = sum(innocent for _, innocent in answers) / len(seeds)
        others = ", ".join(f"{top} {n}" for top, n in tops.most_common())
        most = None if changed["change"] == "carelessness" else MOST_NAMED
        verdicts = (
            *_judge(limits, name, share, least, is_most=False),
            f"{innocent_share:.2f}",
            *_judge(limits, f"{name}, innocent people", innocent_share, most, is_most=True),
        )
        rows.append((name, f"{share:.2f}", *verdicts, others))
    header = ("cause", "answered", "limit", "", "innocent named", "limit", "", "all answers")
    print_table("causes", header, rows)


PARTS = {"steady": measure_steady, "power": measure_power, "causes": measure_causes}


def _judge(
    limits: Limits, row: str, figure: float, limit: float | None, *, is_most: bool
) -> tuple[str, str]:
    if limit is None:
        return "printed", ""
    passed = figure <= limit if is_most else figure >= limit
    limit_text = f"{'≤' if is_most else '≥'} {limit:g}"
    return limit_text, limits.count(passed, f"{row}: {figure:.3f}, limit {limit_text}")


if __name__ == "__main__":
    sys.exit(main())
