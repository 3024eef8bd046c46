"""An annotator's figures: pace, days in a row, agreement with oneself and with known answers."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from rlhf_pipeline.records import Choice, NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.judgements import GoldCount, StandingJudgements, StandingSnapshot
from rlhf_pipeline.web.me.statistics import AnnotatorStatistics, build_statistics
from tests.web.conftest import comparisons

TODAY = date(2026, 3, 10)


def make_snapshot(*days_ago: int, today: int = 0, **more: object) -> StandingSnapshot:
    """A judgement on each of these days, and some of today."""
    by_day = {TODAY - timedelta(days=ago): days_ago.count(ago) for ago in days_ago}
    values = {
        "n_again": 0,
        "n_same": 0,
        "known": [],
        "paces": [],
        "today": {str(i): None for i in range(today)},
        "skips": frozenset(),
    }
    return StandingSnapshot(seq=0, by_day=by_day, **{**values, **more})


def test_nothing_judged_is_nothing_told():
    said = build_statistics(make_snapshot(), TODAY)
    assert (
        said.votes_total,
        said.median_seconds,
        said.days_in_a_row,
        said.repeats.n,
        said.gold.low,
        said.confidence,
    ) == (
        0,
        None,
        0,
        0,
        None,
        (),
    )


def test_pace_is_of_the_newest_and_days_count_up_to_yesterday_while_today_is_empty():
    said = build_statistics(make_snapshot(1, 2, 2, 4, paces=[4.0, 8.0, None, 30.0]), TODAY)
    assert (said.votes_today, said.votes_total, said.median_seconds, said.days_in_a_row) == (
        0,
        4,
        8.0,
        2,
    )
    said = build_statistics(make_snapshot(1, today=1), TODAY)
    assert (said.votes_today, said.days_in_a_row) == (1, 2)
    newest = {str(i): float(i) for i in range(150)}
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
                today={**newest, **{f"x{i}": None for i in range(200)}},
            ),
            TODAY,
        ).median_seconds
        is None
    )


def test_shares_come_with_the_interval_in_which_they_lie():
    said = build_statistics(make_snapshot(1, n_again=4, n_same=3), TODAY)
    assert (said.repeats.agree, said.repeats.n) == (3, 4)
    assert said.repeats.low == pytest.approx(0.3006, abs=1e-4)  # Wilson, by hand
    assert said.repeats.high == pytest.approx(0.9544, abs=1e-4)


def test_known_answers_are_told_by_confidence():
    known = [
        GoldCount(0.92, True, 1),
        GoldCount(0.9, False, 1),
        GoldCount(0.5, True, 1),
        GoldCount(None, True, 2),
    ]
    said = build_statistics(make_snapshot(1, known=known), TODAY)
    assert (said.gold.right, said.gold.n) == (4, 5)
    assert [(one.stated, one.right, one.n) for one in said.confidence] == [(0.5, 1, 1), (0.9, 1, 2)]


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
    sent = {
        "comparison_id": comparison_id,
        "annotator_id": annotator_id,
        "choice": choice,
        **values,
        **more,
    }
    return store.votes.cast(NewVote.model_validate(sent)).vote_id


def test_todays_hidden_cards_are_not_told_yet(store: Store, clock: Clock):
    figures = AnnotatorStatistics(store)
    vote(store, "d0000", stated_confidence=1.0)
    clock.moment += timedelta(days=1)
    vote(store, "c0000", "b", stated_confidence=1.0)
    vote(store, "d0000")
    said = figures.for_annotator("ann")
    assert (said.votes_today, said.votes_total, said.gold.n, said.repeats.n, said.confidence) == (
        2,
        3,
        0,
        0,
        (),
    )
    clock.moment += timedelta(days=1)
    said = figures.for_annotator("ann")
    assert (
        said.votes_today,
        said.votes_total,
        said.gold.n,
        said.gold.right,
        said.repeats.n,
        said.repeats.agree,
    ) == (0, 3, 1, 0, 1, 1)
    assert [(one.stated, one.n) for one in said.confidence] == [(1.0, 1)]


def test_hidden_cards_count_as_they_stood_at_midnight(store: Store, clock: Clock):
    """Else an annotator who dates votes back, or changes yesterday's, sees which card the figures
    follow.
    """
    figures = AnnotatorStatistics(store)
    mine = [
        (one, vote(store, one, stated_confidence=1.0))
        for one in ("c0000", "d0000", "d0000", "c0001")
    ]
    clock.moment += timedelta(days=1)
    before = figures.for_annotator("ann")
    assert (before.gold.n, before.repeats.n) == (2, 1)
    for one in ("c0002", "d0000", "d0001", "d0001"):
        vote(store, one, "b", voted_at=clock.moment - timedelta(days=1), stated_confidence=1.0)
    for one, vote_id in mine:
        vote(store, one, "b", supersedes=vote_id)
    for after in (figures.for_annotator("ann"), AnnotatorStatistics(store).for_annotator("ann")):
        assert (after.gold, after.repeats, after.confidence) == (
            before.gold,
            before.repeats,
            before.confidence,
        )
        assert after.votes_total == 8


def test_what_is_kept_at_hand_says_what_counting_anew_says(store: Store, clock: Clock):
    """Votes, skips, votes taken back, changed, sent late, over some days: asked after each."""
    figures = AnnotatorStatistics(store)
    rng = random.Random(7)
    mine = []
    for _ in range(250):
        clock.moment += timedelta(minutes=rng.choice((1, 1, 1, 1, 400)))
        one = f"{rng.choice('cd')}{rng.randrange(40):04}"
        more: dict[str, object] = {
            "duration_s": rng.choice((None, rng.uniform(1, 90))),
            "stated_confidence": rng.choice((None, 0.5, 0.93)),
        }
        if rng.random() < 0.1:
            more["voted_at"] = clock.moment - timedelta(hours=30)  # from an outbox
        if mine and rng.random() < 0.3:
            one, more["supersedes"] = mine.pop(rng.randrange(max(0, len(mine) - 5), len(mine)))
        choice = rng.choice(("a", "a", "b", "tie", "both_bad", "skip"))
        mine.append((one, vote(store, one, choice, **more)))
        if rng.random() < 0.2:
            vote(store, f"c{rng.randrange(40):04}", annotator_id="bob")
        assert figures.for_annotator("ann") == AnnotatorStatistics(store).for_annotator("ann")
    assert figures.for_annotator("ann").repeats.n > 0
    assert figures.for_annotator("ann").gold.n > 0
    every = store.votes.page(annotator_id="ann", limit=1000)
    assert figures.for_annotator("ann").votes_total == sum(
        not vote.is_superseded and vote.choice != Choice.SKIP for vote in every
    )


def test_the_past_is_counted_once_and_of_today_the_new_votes_are_read(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    for i in range(30):
        vote(store, f"c{i:04}")
    clock.moment += timedelta(days=1)
    counted, read = [], []
    before, since = StandingJudgements.snapshot_before, StandingJudgements.votes_since
    monkeypatch.setattr(
        StandingJudgements, "snapshot_before", lambda *a, **k: counted.append(a) or before(*a, **k)
    )
    monkeypatch.setattr(
        StandingJudgements, "votes_since", lambda *a: read.append(since(*a)) or read[-1]
    )
    figures = AnnotatorStatistics(store)
    for i in range(20):
        vote(store, f"d{i:04}", Choice.SKIP if i == 3 else "a")
        assert figures.for_annotator("ann").votes_total == 30 + i + (i < 3)
    last = vote(store, "d0030")
    undone = vote(store, "d0030", "skip", supersedes=last)
    figures.for_annotator("ann")
    vote(store, "d0030", "b", supersedes=undone)  # taken back, looked at, judged anew
    assert figures.for_annotator("ann").votes_total == 50
    assert len(counted) == 1
    assert [len(votes) for votes in read] == [1] * 19 + [2, 1]
