"""Votes counted by day: each once, on the day it was cast."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from rlhf_pipeline.core.records import AnnotatorKind, NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.memory_cache import DayFigures
from rlhf_pipeline.web.progress.vote_counts import VoteCounts, count_votes
from tests.web.conftest import NOON, comparisons


def vote(store: Store, i: int, **more: object) -> str:
    values = {
        "annotator_kind": "human",
        "choice": "a",
        "voted_at": NOON + timedelta(minutes=i),
        "origin": "api",
        "duration_s": float(i),
    }
    return store.votes.cast(
        NewVote.model_validate(
            {
                "comparison_id": f"c{i:04}",
                "annotator_id": "ann",
                "idempotency_key": f"k{i}",
                **values,
                **more,
            }
        )
    ).vote_id


def read(store: Store) -> VoteCounts:
    return count_votes(store.votes.day_tallies(list(store.votes.changed_days(0))))


def test_standing_votes_are_counted(open_store: Callable[..., Store]):
    store = open_store()
    store.comparisons.publish(comparisons(6), published_at=NOON)
    first = vote(store, 0)
    vote(store, 1, choice="skip")
    vote(store, 2, annotator_kind="simulated", annotator_id="sim")
    vote(store, 3, annotator_kind="machine", annotator_id="robot")
    vote(store, 0, choice="b", supersedes=first, idempotency_key="again")
    counted = read(store)
    assert (counted.n_votes, counted.n_simulated) == (2, 1)
    assert (counted.n_machine, counted.n_skips) == (1, 1)
    assert counted.by_day == {NOON.date(): 2}
    assert store.votes.paces() == {"ann": [0.0, 0.0], "sim": [2.0], "robot": [3.0]}


def test_day_is_counted_again_only_after_a_vote(open_store: Callable[..., Store]):
    store = open_store()
    store.comparisons.publish(comparisons(6), published_at=NOON)
    other = NOON + timedelta(days=1)
    first = vote(store, 0)
    vote(store, 1, voted_at=other)
    figures = DayFigures(store, seconds=0)
    requests: list[list[str]] = []

    def count(days: Sequence[str]) -> dict[str, int]:
        requests.append(list(days))
        return {day: sum(tally.n for tally in store.votes.day_tallies(days)[day]) for day in days}

    today, tomorrow = NOON.date().isoformat(), other.date().isoformat()
    days = [today, tomorrow, "2026-02-01"]
    assert figures.read("n", days, count) == figures.read("n", days, count)
    vote(store, 2, voted_at=other)
    assert figures.read("n", days, count) == {today: 1, tomorrow: 2}
    assert requests == [[today, tomorrow], [tomorrow]]
    vote(store, 0, supersedes=first, voted_at=other, idempotency_key="moved")
    assert figures.read("n", [today], lambda _: {}) == {today: ()}, "its only vote moved"


def test_changed_day_is_counted_again_after_seconds(open_store: Callable[..., Store]):
    store = open_store()
    store.comparisons.publish(comparisons(6), published_at=NOON)
    vote(store, 0)
    clock = {"now": 0.0}
    figures = DayFigures(store, seconds=7, monotonic=lambda: clock["now"])

    def count(days: Sequence[str]) -> dict[str, int]:
        clock["now"] += 2  # a vote that arrives meanwhile is not in it
        return {day: store.votes.count() for day in days}

    def read_at(now: float) -> list[int]:
        clock["now"] = now
        return list(figures.read("n", [NOON.date().isoformat()], count).values())

    assert read_at(0) == [1]
    vote(store, 1)
    assert [read_at(6.9), read_at(7)] == [[1], [2]]
    assert read_at(1_000) == [2], "nothing changed"


def test_concurrent_readers_count_once(open_store: Callable[..., Store]):
    store = open_store()
    store.comparisons.publish(comparisons(2), published_at=NOON)
    vote(store, 0)
    figures = DayFigures(store, seconds=10)
    requests: list[Sequence[str]] = []

    def count(days: Sequence[str]) -> dict[str, int]:
        requests.append(days)
        time.sleep(0.2)  # the others come meanwhile
        return dict.fromkeys(days, 1)

    day = NOON.date().isoformat()
    with ThreadPoolExecutor(4) as pool:
        tallies = list(pool.map(lambda _: figures.read("n", [day], count), range(4)))
    assert (tallies, requests) == ([{day: 1}] * 4, [[day]])


def test_imported_votes_count_on_the_day_they_were_cast(open_store: Callable[..., Store]):
    """Not on that of the import, and on no day where nobody wrote it down."""
    store = open_store()
    store.comparisons.publish(comparisons(3), published_at=NOON)
    last_year = NOON - timedelta(days=365)
    vote(store, 0, origin="import", voted_at=last_year)
    vote(store, 1, origin="import", voted_at=None)
    vote(store, 2, origin="import", voted_at=None, annotator_id="undated")
    counted = read(store)
    assert (counted.n_votes, counted.by_day) == (3, {last_year.date(): 1})
    assert counted.last_at == {"ann": last_year}
    assert counted.by_annotator[("ann", AnnotatorKind.HUMAN)] == 2
