"""Dates that no vote has and NUL characters: refused by the store itself, whichever door they come
through.
"""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rlhf_pipeline.core.errors import InvalidVote
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON, SetClock


@pytest.fixture
def store(url, store, make_comparisons):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    with Store.open(url, clock=SetClock()) as dated:
        yield dated


@pytest.mark.parametrize(
    "voted_at",
    [
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=12))),
        datetime(2026, 1, 3, tzinfo=UTC),
        datetime(2026, 1, 2, 23, tzinfo=timezone(-timedelta(hours=1))),
    ],
)
def test_every_way_to_cast_refuses_impossible_dates(store, make_vote, voted_at):
    vote = make_vote(voted_at=voted_at)
    for cast in (
        store.votes.cast,
        lambda vote: store.votes.cast_many([vote]),
        lambda vote: store.votes.cast_all([vote]),
    ):
        with pytest.raises(InvalidVote, match=r"voted_at is .*dated from 1970-01-01 to tomorrow"):
            cast(vote)
    (refusal,) = store.votes.cast_each([vote])
    assert isinstance(refusal, InvalidVote)
    assert store.votes.count() == 0


@pytest.mark.parametrize(
    "voted_at", [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 23, 59, tzinfo=UTC)]
)
def test_dates_from_1970_to_tomorrow_are_kept(store, make_vote, voted_at):
    assert store.votes.cast(make_vote(voted_at=voted_at)).voted_at == voted_at


def test_one_misdated_vote_does_not_refuse_its_neighbours(store, make_vote):
    votes = [
        make_vote("c0"),
        make_vote("c1", voted_at=NOON + timedelta(days=9)),
        make_vote("c2", reason="a\0b"),
        make_vote("c2"),
    ]
    kinds = [type(answer).__name__ for answer in store.votes.cast_each(votes)]
    assert kinds == ["Vote", "InvalidVote", "InvalidVote", "Vote"]


@pytest.mark.parametrize(
    "field", ["reason", "task_id", "annotator_id", "idempotency_key", "comparison_id"]
)
def test_nul_in_a_vote_is_refused_by_its_field(store, make_vote, field):
    with pytest.raises(InvalidVote, match=f"{field} holds a NUL character"):
        store.votes.cast(make_vote(**{"idempotency_key": "k", field: "a\0b"}))
