"""Eight people vote while a run writes predictions and an import casts, each in a process of its
own. Prints nothing; see bench_store.
"""

import multiprocessing
import queue
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from rlhf_pipeline.core.frames import PREDICTIONS, check_frame
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store

SPAWN = multiprocessing.get_context("spawn")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
VOTERS = 8


def open_store(url: str) -> Store:
    return Store.open(url)


def make_vote(comparison_id: str, annotator_id: str, key: str, origin: str = "page") -> NewVote:
    return NewVote(
        comparison_id=comparison_id,
        annotator_id=annotator_id,
        annotator_kind="human",
        choice="a",
        strength=2,
        voted_at=NOON,
        origin=origin,
        idempotency_key=key,
    )


def publish_predictions(
    url: str, ids: list[str], reward_model: str, started: Any, ended: Any, results: Any
) -> None:
    """A run that writes a prediction for every comparison given."""
    columns = {
        "day": "2026-06-01",
        "comparison_id": ids,
        "reward_model": reward_model,
        "calibrator": "1",
        "data_hash": "d",
        "features_hash": "f",
        "score_a": 1.0,
        "score_b": 0.5,
        "p_raw": 0.6,
        "p_calibrated": 0.6,
        "predicted_at": NOON,
    }
    frame = check_frame(pd.DataFrame(columns), PREDICTIONS)
    with open_store(url) as store:
        store.votes.count()
        started.wait()
        start = time.perf_counter()
        for first in range(0, len(frame), 5_000):
            store.predictions.replay(frame[first : first + 5_000], data_seq=0)
        results.put(("publishing", time.perf_counter() - start))
    ended.set()


def import_votes(
    url: str, ids: list[str], name: str, started: Any, ended: Any, results: Any
) -> None:
    """An import that casts as fast as it may until the run has ended."""

    def generate_votes() -> Iterator[NewVote]:
        n = 0
        while not ended.is_set():
            yield make_vote(
                ids[n % len(ids)], f"{name}-{n // len(ids)}", f"import:{name}:{n}", "import"
            )
            n += 1

    with open_store(url) as store:
        store.votes.count()
        started.wait()
        start = time.perf_counter()
        count = store.votes.cast_all(generate_votes())
        results.put(("importing", count.n_new / (time.perf_counter() - start)))


def send_votes(
    url: str,
    ids: list[str],
    names: list[str],
    thinks_s: float,
    started: Any,
    ended: Any,
    results: Any,
) -> None:
    """One process of voters, a thread each: seconds of every vote, and what went wrong."""
    with open_store(url) as store, ThreadPoolExecutor(len(names)) as pool:
        store.votes.count()
        started.wait()

        def vote(name: str) -> tuple[list[float], list[str]]:
            rng = random.Random(name)
            took = []
            errors = []
            while not ended.is_set():
                time.sleep(rng.expovariate(1 / thinks_s) if thinks_s else 0)
                vote_row = make_vote(rng.choice(ids), name, f"{name}:{len(took)}")
                start = time.perf_counter()
                try:
                    store.votes.cast(vote_row)
                except Exception as error:  # noqa: BLE001 - told, counted and judged at the end
                    errors.append(f"{type(error).__name__}: {error}")
                took.append(time.perf_counter() - start)
            return took, errors

        for took, errors in pool.map(vote, names):
            results.put(("voting", (took, errors)))


def run_load(
    url: str, ids: list[str], *, n_predictions: int, name: str, as_processes: bool, thinks_s: float
) -> dict[str, Any]:
    """What the voters saw: `took` (seconds of each vote), `errors`; seconds of the run and votes a
    second of the import.
    """
    ended, results = SPAWN.Event(), SPAWN.Queue()
    people = [f"{name}-voter-{n}" for n in range(VOTERS)]
    groups = [[person] for person in people] if as_processes else [people]
    # when all have imported what they need and are connected
    started = SPAWN.Barrier(2 + len(groups), timeout=300)
    signs = (started, ended, results)
    jobs = [
        (publish_predictions, (url, ids[:n_predictions], f"bench.{name}@1", *signs)),
        (import_votes, (url, ids, f"{name}-import", *signs)),
    ]
    jobs += [(send_votes, (url, ids, group, thinks_s, *signs)) for group in groups]
    processes = [SPAWN.Process(target=target, args=job_arguments) for target, job_arguments in jobs]
    for process in processes:
        process.start()
    totals: dict[str, Any] = {"took": [], "errors": []}
    for _ in range(2 + VOTERS):
        kind, value = _next_message(results, processes)
        if kind == "voting":
            totals["took"] += value[0]
            totals["errors"] += value[1]
        else:
            totals[kind] = value
    for process in processes:
        process.join()
    return totals


def _next_message(results: Any, processes: list[Any]) -> Any:
    """What the next process has to say; the end of the benchmark where one died without a word."""
    while True:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                for process in processes:
                    process.kill()
                raise SystemExit(
                    "A process of the voting load died; its error stands above."
                ) from None
