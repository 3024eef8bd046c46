"""An annotator's figures: pace, days in a row, agreement with oneself and with known answers."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.judgements import GoldCount, StandingSnapshot
from rlhf_pipeline.web.me.statistics import build_statistics, read_statistics
from tests.web.conftest import comparisons

TODAY = date(2026, 3, 10)


def make_snapshot(*days_ago: int, today: int = 0, **more: object) -> StandingSnapshot:
    """A judgement on each of these days, and some of today."""
    by_day = {TODAY - timedelta(days=ago): days_ago.count(ago) for ago in days_ago}
    values = {
        "n_again": 0,
        "n_same": 0,
        "gold_counts": [],
        "paces": [],
        "today": [None] * today,
    }
    return StandingSnapshot(by_day=by_day, **{**values, **more})


def test_without_votes_there_are_no_statistics():
    statistics = build_statistics(make_snapshot(), TODAY)
    assert (
        statistics.votes_total,
        statistics.median_seconds,
        statistics.days_in_a_row,
        statistics.repeats.n,
        statistics.gold.low,
        statistics.confidence,
    ) == (
        0,
        None,
        0,
        0,
        None,
        (),
    )


def test_pace_uses_newest_votes_and_streak_ends_yesterday():
    statistics = build_statistics(make_snapshot(1, 2, 2, 4, paces=[4.0, 8.0, None, 30.0]), TODAY)
    assert (
        statistics.votes_today,
        statistics.votes_total,
        statistics.median_seconds,
        statistics.days_in_a_row,
    ) == (
        0,
        4,
        8.0,
        2,
    )
    statistics = build_statistics(make_snapshot(1, today=1), TODAY)
    assert (statistics.votes_today, statistics.days_in_a_row) == (1, 2)
    newest = [float(i) for i in range(150)]
    paces = [1000.0] * 200
    # of 149 to 0, and of 50 earlier ones
    assert (
        build_statistics(replace(make_snapshot(1, paces=paces), today=newest), TODAY).median_seconds
        == 99.5
    )
    assert (
        build_statistics(
            replace(
                make_snapshot(1, paces=paces),
                today=[*newest, *[None] * 200],
            ),
            TODAY,
        ).median_seconds
        is None
    )


def test_shares_have_intervals():
    statistics = build_statistics(make_snapshot(1, n_again=4, n_same=3), TODAY)
    assert (statistics.repeats.agree, statistics.repeats.n) == (3, 4)
    assert statistics.repeats.low == pytest.approx(0.3006, abs=1e-4)  # Wilson, by hand
    assert statistics.repeats.high == pytest.approx(0.9544, abs=1e-4)


def test_gold_accuracy_is_shown_by_confidence():
    known = [
        GoldCount(0.92, True, 1),
        GoldCount(0.9, False, 1),
        GoldCount(0.5, True, 1),
        GoldCount(None, True, 2),
    ]
    statistics = build_statistics(make_snapshot(1, gold_counts=known), TODAY)
    assert (statistics.gold.right, statistics.gold.n) == (4, 5)
    assert [(level.stated, level.right, level.n) for level in statistics.confidence] == [
        (0.5, 1, 1),
        (0.9, 1, 2),
    ]


class Clock:
    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 10, 9, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(open_store: Callable[..., Store], clock: Clock) -> Store:
    store = open_store()
    store.comparisons.publish(comparisons(40, gold="a"), published_at=clock.now())
    store.comparisons.publish(comparisons(40, prefix="d"), published_at=clock.now())
    return store


def vote(
    store: Store,
    comparison_id: str,
    choice: str = "a",
    *,
    annotator_id: str = "ann",
    **more: object,
) -> str:
    key = f"{store.votes.max_seq()}"
    values = {
        "annotator_kind": "human",
        "voted_at": store.database.clock.now(),
        "origin": "page",
        "idempotency_key": key,
    }
    fields = {
        "comparison_id": comparison_id,
        "annotator_id": annotator_id,
        "choice": choice,
        **values,
        **more,
    }
    return store.votes.cast(NewVote.model_validate(fields)).vote_id


def test_hidden_cards_of_today_are_not_revealed(store: Store, clock: Clock):
    vote(store, "d0000", stated_confidence=1.0)
    clock.moment += timedelta(days=1)
    vote(store, "c0000", "b", stated_confidence=1.0)
    vote(store, "d0000")
    statistics = read_statistics(store, "ann")
    assert (
        statistics.votes_today,
        statistics.votes_total,
        statistics.gold.n,
        statistics.repeats.n,
        statistics.confidence,
    ) == (
        2,
        3,
        0,
        0,
        (),
    )
    clock.moment += timedelta(days=1)
    statistics = read_statistics(store, "ann")
    assert (
        statistics.votes_today,
        statistics.votes_total,
        statistics.gold.n,
        statistics.gold.right,
        statistics.repeats.n,
        statistics.repeats.agree,
    ) == (0, 3, 1, 0, 1, 1)
    assert [(level.stated, level.n) for level in statistics.confidence] == [(1.0, 1)]


def test_hidden_cards_count_as_of_midnight(store: Store, clock: Clock):
    """Else an annotator who dates votes back, or changes yesterday's, sees which card the figures
    follow.
    """
    mine = [
        (
            comparison_id,
            vote(
                store,
                comparison_id,
                stated_confidence=1.0,
                voted_at=clock.moment + timedelta(minutes=minutes),
            ),
        )
        for minutes, comparison_id in enumerate(("c0000", "d0000", "d0000", "c0001"))
    ]
    clock.moment += timedelta(days=1)
    before = read_statistics(store, "ann")
    assert (before.gold.n, before.repeats.n) == (2, 1)
    for minutes, comparison_id in enumerate(("c0002", "d0000", "d0001", "d0001")):
        vote(
            store,
            comparison_id,
            "b",
            voted_at=clock.moment - timedelta(days=1, minutes=-minutes),
            stated_confidence=1.0,
        )
    for comparison_id, vote_id in mine:
        vote(store, comparison_id, "b", supersedes=vote_id)
    after = read_statistics(store, "ann")
    assert (after.gold, after.repeats, after.confidence) == (
        before.gold,
        before.repeats,
        before.confidence,
    )
    assert after.votes_total == 8
