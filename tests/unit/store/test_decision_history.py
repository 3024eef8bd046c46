"""What a replay of the trigger reads from the store, held against the store's own decisions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from rlhf_pipeline.records import NewVote, Promotion, Vote
from rlhf_pipeline.retraining.replay import (
    History,
    TrainableVotes,
    known_seq,
    list_ticks,
    redecide,
)
from rlhf_pipeline.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON, SetClock

MODEL = "demo.reward_model@1"


def test_votes_are_read_with_what_they_supersede(
    store: Store, make_comparisons: Callable[..., Any], make_vote: Callable[..., NewVote]
) -> None:
    assert store.decision_history.votes().empty
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    slip = store.votes.cast(make_vote("c0"))
    skip = store.votes.cast(make_vote("c1", choice="skip"))
    store.votes.cast(make_vote("c2", "model", annotator_kind="machine"))
    store.votes.cast(make_vote("c0", supersedes=slip.vote_id, idempotency_key="again"))
    store.votes.cast(make_vote("c1", supersedes=skip.vote_id, idempotency_key="answered"))
    votes = store.decision_history.votes()
    assert votes["is_trainable"].tolist() == [True, False, False, True, True]
    assert votes["replaced_seq"].tolist() == [0, 0, 0, slip.seq, 0], "a skip trains nothing"
    assert votes["day"].unique().tolist() == ["2026-01-01"]
    assert str(votes["received_at"].dt.tz) == "UTC"


def test_history_decided_again_gives_the_stored_decisions(
    store: Store,
    make_comparisons: Callable[..., Any],
    make_vote: Callable[..., NewVote],
    make_event: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(7)
    params = TriggerParams(min_new_votes=25, cool_down_hours=30, confirmation_window=40)
    store.comparisons.publish(make_comparisons(20), published_at=NOON)
    store.database.clock = SetClock(datetime(2026, 6, 1, tzinfo=UTC))
    champion = Promotion(
        model_name="demo.reward_model",
        version=1,
        previous_version=None,
        data_seq=0,
        reason="test",
        actor="test",
    )
    for day in range(12):  # each decided at its end, as an import is replayed
        at = NOON + timedelta(days=day)
        cast: list[Vote] = []
        for i in range(20):
            replaces = cast and rng.random() < 0.1
            vote = make_vote(
                cast[-1].comparison_id if replaces else f"c{i}",
                f"ann{day}",
                choice="skip" if rng.random() < 0.2 else "a",
                voted_at=at,
                supersedes=cast[-1].vote_id if replaces else None,
                idempotency_key=f"{day}/{i}",
            )
            cast.append(store.votes.cast(vote))
        last = store.votes.max_seq()
        store.events.add(
            [
                make_event(
                    int(seq),
                    detector=str(rng.choice(["ddm", "adwin", "hddm_a"])),
                    change_seq=int(seq) - 5,
                )
                for seq in rng.integers(last - 19, last + 1, rng.integers(0, 3))
            ]
        )
        end = datetime.combine(at.date(), datetime.max.time(), UTC)
        made = store.decisions.decide(lambda e: decide(e, params), now=end, champion=MODEL)
        if made is not None and made.action == "fire":
            store.training_jobs.mark_finished(made.stored_id, succeeded=True)
    stored = store.decisions.all()
    votes = store.decision_history.votes()
    history = History(
        list_ticks(votes, [champion], votes_per_tick=50),
        sorted(store.events.for_model(MODEL), key=lambda e: (e.seq, e.event_id)),
        TrainableVotes(votes),
        run_time=timedelta(),
    )
    again = redecide(history, params)
    assert {d.action for d in stored} == {"fire", "hold"}
    assert [(d.action, known_seq(d), d.reasons, d.change_seq, set(d.event_ids)) for d in again] == [
        (d.action, known_seq(d), d.reasons, d.change_seq, set(d.event_ids)) for d in stored
    ]
