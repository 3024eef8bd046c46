from datetime import date, datetime, timedelta

import pytest

from rlhf_pipeline.core.records import NewVote, Promotion
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.vote_days import find_day, find_vote_days, find_votes_until
from tests.learnt_home import comparisons
from tests.unit.web.conftest import ShiftedClock


def learn_from_vote(store: Store, voted_at: datetime | None, now: datetime) -> None:
    frame = comparisons(1)
    store.comparisons.publish(frame, published_at=now)
    vote = NewVote(
        comparison_id=frame["comparison_id"].iloc[0],
        annotator_id="ann",
        annotator_kind="human",
        origin="import",
        choice="a",
        voted_at=voted_at,
        idempotency_key="one",
    )
    promotion = Promotion(
        model_name="demo.reward_model",
        version=1,
        previous_version=None,
        data_seq=store.votes.cast(vote).seq,
        reason="first reward model",
        actor="run run-1",
        promoted_at=now,
    )
    store.promotions.record(promotion)


@pytest.mark.parametrize("days_late", [0, 300, None])
def test_later_run_has_the_day_of_late_votes(
    store: Store, clock: ShiftedClock, days_late: int | None
):
    """An old reward model does not date the promotions of a project whose people vote live."""
    now = clock.now()
    cast_at = None if days_late is None else now - timedelta(days=days_late)
    learn_from_vote(store, cast_at, now)
    later, before = now + timedelta(days=10), now - timedelta(days=1)
    days = find_vote_days(store, "demo", [before, later])
    voted: date = (cast_at or now).date()
    assert find_votes_until(days, before) is None
    assert find_votes_until(days, later) == voted
    assert find_day(before, days.get(before)) == before.date()
    assert find_day(later, days.get(later)) == (voted if days_late else later.date())
