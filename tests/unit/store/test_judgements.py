"""One annotator's judgements: those that stand, and counts of them."""

from datetime import date, timedelta

import pytest

from rlhf_pipeline.store import Store
from rlhf_pipeline.store.judgements import GoldCount, StandingJudgements
from tests.unit.store.conftest import NOON, SetClock

TODAY = date(2026, 1, 3)


@pytest.fixture
def published(store, make_comparisons) -> Store:
    frame = make_comparisons(6).assign(gold=["a", "b", "a", None, None, None])
    store.comparisons.publish(frame, published_at=NOON)
    return store


def test_earlier_days_are_counted_and_today_is_listed(published, make_vote, monkeypatch):
    def cast(n_days: int, *args, **more):
        moment = NOON + timedelta(days=n_days, minutes=published.votes.count())
        monkeypatch.setattr(published.database, "clock", SetClock(moment))
        return published.votes.cast(make_vote(*args, voted_at=moment, **more))

    cast(0, "c0", choice="a", stated_confidence=0.9, duration_s=3.0)  # right
    cast(0, "c1", choice="a", stated_confidence=0.9, duration_s=5.0)  # wrong
    cast(0, "c0", choice="a", idempotency_key="again")  # the same again
    cast(1, "c1", choice="b", idempotency_key="otherwise")
    cast(1, "c3", choice="skip")
    cast(1, "c3", annotator_id="bob")
    cast(2, "c2", choice="a", duration_s=7.0)
    cast(2, "c4", choice="skip")
    judgements = StandingJudgements(published.database)
    snapshot = judgements.snapshot_before("ann", TODAY, n_paces=3)
    assert snapshot.by_day == {date(2026, 1, 1): 3, date(2026, 1, 2): 1}
    assert (snapshot.n_again, snapshot.n_same) == (2, 1)
    assert sorted(snapshot.gold_counts) == [GoldCount(0.9, False, 1), GoldCount(0.9, True, 1)]
    assert snapshot.paces == [None, None, 5.0]
    assert snapshot.today == [7.0]
    nobody = judgements.snapshot_before("nobody", TODAY, n_paces=3)
    assert (nobody.by_day, nobody.gold_counts, nobody.today) == ({}, [], [])
