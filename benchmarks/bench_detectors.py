"""What the drift detectors cost and catch: false alarms, delay and dating, alone and k of n, and
in the laboratory's steady worlds.
Prints one table each.

    python benchmarks/bench_detectors.py [--seeds 100]

Streams are errors of a model that is wrong in 25 % of votes; in half of them the rate rises to 50 %
(or 40 %).
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.drift import DETECTORS  # noqa: E402
from rlhf_pipeline.drift.confirmation import (  # noqa: E402
    ConfirmationParams,
    estimate_change_seq,
    find_confirming_events,
)
from rlhf_pipeline.drift.report import DriftParams  # noqa: E402
from rlhf_pipeline.drift.stream import measure_level, scan  # noqa: E402
from rlhf_pipeline.drift.vote_stream import mark_hasty_votes  # noqa: E402
from rlhf_pipeline.drift.windows import WindowParams  # noqa: E402
from rlhf_pipeline.laboratory import LAB_SCENARIOS  # noqa: E402
from rlhf_pipeline.laboratory.day_events import average_errors  # noqa: E402
from rlhf_pipeline.records import DriftEvent  # noqa: E402
from rlhf_pipeline.simulation.vote_worlds import draw_reference, draw_votes  # noqa: E402

Streams = list[tuple[DriftEvent, ...]]
BASE = 0.25
SHIPPED = ("ddm", "adwin", "hddm_a")
ALL, CHOSEN = DriftParams(detectors=list(DETECTORS)), DriftParams().chosen()


def error_frame(seed: int, n_before: int, n_after: int, risen: float) -> pd.DataFrame:
    rng = np.random.default_rng([seed, n_before, n_after])
    errors = np.concatenate([rng.random(n_before) < BASE, rng.random(n_after) < risen]).astype(int)
    return pd.DataFrame(
        {"seq": np.arange(1, len(errors) + 1), "day": "2026-01-01", "error": errors}
    )


def events_of(seed: int, n_before: int, n_after: int, risen: float) -> tuple[DriftEvent, ...]:
    frame = error_frame(seed, n_before, n_after, risen)
    return scan(frame, model_version="bench@1", params=ALL).events


def first_confirmed(
    events: Sequence[DriftEvent], params: ConfirmationParams
) -> tuple[DriftEvent, ...]:
    """What the trigger sees the first time it would fire, reading events as they come."""
    for i in range(1, len(events) + 1):
        if span := find_confirming_events(events[:i], params):
            return span
    return ()


def events_by(names: Sequence[str], streams: Streams) -> Streams:
    return [tuple(e for e in events if e.detector in names) for events in streams]


def row(name: str, k: int, still: Streams, changed: Streams, n_before: int) -> list[object]:
    """Rates and delays of one rule: alarms on stationary streams, first alarm at or after the
    change on the others.
    """
    params = ConfirmationParams(confirmations=k)
    false = np.mean([bool(first_confirmed(events, params)) for events in still])
    spans = [first_confirmed(events, params) for events in changed]
    right = np.mean([bool(span) and span[-1].seq > n_before for span in spans])
    caught = [
        first_confirmed([e for e in events if e.seq > n_before], params) for events in changed
    ]
    delays = np.array([span[-1].seq - n_before if span else np.inf for span in caught])
    dated = [(estimate_change_seq(span) or 0) - n_before for span in caught if span]
    delay = [f"{np.quantile(delays, q, method='inverted_cdf'):.0f}" for q in (0.5, 0.95)]
    dating = "/".join(f"{np.quantile(dated, q):+.0f}" for q in (0.1, 0.5, 0.9)) if dated else "-"
    accuracy = (right + 1 - false) / 2
    return [
        name,
        f"{false:.1%}",
        f"{np.mean(delays <= 300):.1%}",
        *delay,
        dating,
        f"{accuracy:.3f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    header = (
        "rule",
        "false alarm in stationary stream",
        "found within 300",
        "delay p50",
        "p95",
        "change dated p10/p50/p90",
        "accuracy",
    )
    with ProcessPoolExecutor(given.processes) as pool:
        run = partial(pool.map, chunksize=10)
        still: Streams = list(
            run(partial(events_of, n_before=1000, n_after=0, risen=BASE), range(given.seeds))
        )
        for n_before, risen in ((1000, 0.5), (1800, 0.5), (1000, 0.4)):
            after = partial(events_of, n_before=n_before, n_after=500, risen=risen)
            changed: Streams = list(run(after, range(given.seeds, 2 * given.seeds)))
            rows = [
                row(name, 1, events_by([name], still), events_by([name], changed), n_before)
                for name in DETECTORS
            ]
            rows += [
                row(
                    f"{k} of {', '.join(names)}" if len(names) < len(DETECTORS) else f"{k} of all",
                    k,
                    events_by(names, still),
                    events_by(names, changed),
                    n_before,
                )
                for names, counts in ((CHOSEN, (1, 2, 3)), (list(DETECTORS), (2, 3, 4)))
                for k in counts
            ]
            print_table(
                f"{given.seeds} seeds; stationary: 1000 votes; changed: {BASE} -> {risen} after "
                f"vote {n_before}",
                header,
                rows,
            )
    count_false_rises(given.seeds)
    costs()
    limits = Limits()
    seconds = read_a_day(np.random.default_rng(1).random(100_000) < BASE)
    limits.check(
        seconds <= 20, f"100,000 votes through {', '.join(SHIPPED)}: {seconds:.1f} CPU s (limit 20)"
    )
    return limits.print_summary()


def read_a_day(errors: np.ndarray) -> float:
    """CPU seconds."""
    stream = errors.astype(int).tolist()
    start = time.process_time()
    for name in SHIPPED:
        detector = DETECTORS[name](DETECTORS[name].Params())
        for seq, error in enumerate(stream):
            detector.update(error, seq)
    return time.process_time() - start


def count_false_rises(n_streams: int) -> None:
    """What the detectors on by default report in the laboratory's steady worlds."""
    rows = []
    for name in ("independent", "three_in_a_row", "weekly_rhythm", "careless_bursts"):
        n_votes, found = 0, Counter[str]()
        for seed in range(n_streams):
            world = LAB_SCENARIOS[name].draw_world(seed)
            votes = mark_hasty_votes(draw_votes(world, seed)).assign(reward_model="bench@1")
            reference = draw_reference(world, seed)
            level = measure_level(pd.Series(average_errors(reference)), reference["p"])
            events = scan(votes, model_version="bench@1", reference=level).events
            n_votes += len(votes)
            found.update(event.detector for event in events)
        rows.append((name, *(f"{found[each] / n_votes * 1e5:.1f}" for each in CHOSEN)))
    print_table(f"Events in 100,000 votes, {n_streams} steady streams", ("world", *CHOSEN), rows)


def costs() -> None:
    """Microseconds a vote, state saved at the end; one run on this machine."""
    errors = (np.random.default_rng(0).random(20_000) < BASE).astype(int).tolist()
    rows = []
    for name, kind in DETECTORS.items():
        detector = kind(kind.Params())
        start = time.perf_counter()
        for seq, error in enumerate(errors):
            detector.update(error, seq)
        each = (time.perf_counter() - start) / len(errors) * 1e6
        rows.append((name, f"{each:.1f}", len(str(detector.state()))))
    print_table("Cost over 20,000 votes", ("detector", "µs a vote", "state, bytes"), rows)
    print(
        f"\nWindow tests: alpha {WindowParams().alpha} over all tests of a day; see "
        "tests/unit/drift/test_windows.py for the rate."
    )


if __name__ == "__main__":
    sys.exit(main())
