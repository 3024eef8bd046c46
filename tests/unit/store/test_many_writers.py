"""Threads and processes that write at once, and processes killed in the middle."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from rlhf_pipeline.core.records import DriftEvent, NewVote
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import audit, votes
from tests.unit.store.conftest import NOON

MODEL = "demo.reward_model@1"
FORK = multiprocessing.get_context("fork")


def opened(url: str) -> Store:
    return Store.open(url)


def start(target: Callable[..., None], *args: Any) -> Any:
    process = FORK.Process(target=target, args=args)
    process.start()
    return process


def cast_singly(url: str, batch: list[NewVote]) -> None:
    with opened(url) as store:
        for vote in batch:
            store.votes.cast(vote)


def whole_votes(store: Store) -> int:
    """The number of votes, after checking that each has its link and
    that the chain verifies.
    """
    store.audit.verify()
    with store.database.read_transaction() as connection:
        n_votes, max_seq = connection.execute(select(func.count(), func.max(votes.c.seq))).one()
        assert n_votes == (max_seq or 0)
        assert (
            connection.execute(
                select(func.count()).where(audit.c.action == "vote.cast")
            ).scalar_one()
            == n_votes
        )
    return n_votes


def test_fifty_threads_with_one_key_cast_one_vote(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    with ThreadPoolExecutor(50) as pool:
        cast = list(pool.map(lambda _: store.votes.cast(make_vote()), range(50)))
    assert len({vote.vote_id for vote in cast}) == 1
    assert all(vote == cast[0] for vote in cast)
    assert whole_votes(store) == 1


def test_eight_processes_leave_one_gapless_chain(store, url, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(10), published_at=NOON)
    processes = [
        start(cast_singly, url, [make_vote(f"c{i}", f"ann{p}") for i in range(10)])
        for p in range(8)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert whole_votes(store) == 80


@pytest.mark.parametrize("publishing", [False, True])
def test_killed_writer_leaves_whole_transactions(
    store, url, make_comparisons, make_predictions, make_vote, publishing
):
    comparisons = make_comparisons(800)
    predictions = make_predictions(comparisons)
    if not publishing:
        store.comparisons.publish(comparisons, predictions, published_at=NOON)
    batch = [make_vote(f"c{i}", f"ann{a}") for a in range(2) for i in range(800)]

    def write() -> None:
        with opened(url) as own:
            own.comparisons.publish(comparisons, predictions, published_at=NOON)
            own.votes.cast_many(batch)

    moments = random.Random(20260101)
    killed = 0
    for _ in range(10):
        process = start(write)
        time.sleep(moments.uniform(0.01, 0.25))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.join()
        whole_votes(store)
        assert store.predictions.count() == store.comparisons.count()
    write()
    assert killed > 0
    assert whole_votes(store) == 1600
    assert counting_votes(store.votes.log(["2026-01-01"]))["vote_id"].is_unique
    assert store.comparisons.publish(comparisons, predictions, published_at=NOON).n_new == 0


# two detectors confirm a change
DECIDE = partial(decide, params=TriggerParams(confirmations=2))


def report_and_decide(url: str, events: list[DriftEvent]) -> None:
    """What every tick does, over and over: the scan's events again, then a decision."""
    with opened(url) as store:
        while True:
            store.events.add(events)
            store.decisions.apply_rule(DECIDE, now=NOON, champion=MODEL)


def test_killed_deciders_and_duplicate_events_give_one_response(
    store, url, make_comparisons, make_vote, make_event
):
    store.comparisons.publish(make_comparisons(200), published_at=NOON)
    store.votes.cast_many([make_vote(f"c{i}") for i in range(200)])
    pair = [make_event(150, change_seq=100), make_event(160, detector="adwin", change_seq=100)]
    duplicates = pair * 500
    moments = random.Random(20260102)
    for _ in range(6):
        processes = [start(report_and_decide, url, duplicates) for _ in range(2)]
        time.sleep(moments.uniform(0.05, 0.25))
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    store.events.add(duplicates)
    assert store.events.for_model(MODEL) == pair
    store.decisions.apply_rule(DECIDE, now=NOON, champion=MODEL)
    assert [d.state for d in store.decisions.all()] == ["pending"]
    assert len(store.decisions.all()[0].event_ids) == 2
    assert [change.change_seq for change in store.taste_changes.all()] == [100]
    store.audit.verify()
