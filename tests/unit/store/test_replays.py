"""Replays in the store: what waits, who may take a step, what a model of that day may predict, what
was said twice.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.core.records import DriftEvent, NewVote, TriggerDecision, TriggerEvidence
from rlhf_pipeline.feedback.votes.counting import repeat_passes
from rlhf_pipeline.store import Store

NOW = datetime(2026, 11, 1, 9, tzinfo=UTC)
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
MODEL = "demo.reward_model@1"


def imported(
    make_comparisons: Callable[..., pd.DataFrame],
    n: int = 3,
    *,
    flag: str | None = None,
    prefix: str = "c",
) -> pd.DataFrame:
    frame = make_comparisons(n, prefix=prefix)
    columns = {
        "source": "small",
        "source_pair_id": [f"{prefix}-{i}" for i in range(n)],
        "flag": flag,
    }
    return frame.assign(**columns).astype({name: "str" for name in columns})


def vote(
    make_vote: Callable[..., NewVote],
    comparison: str,
    day: str | None,
    by: str = "ann",
    choice: str = "a",
    **more: Any,
) -> NewVote:
    at = None if day is None else datetime.fromisoformat(f"{day}T12:00:00+00:00")
    values = {
        "origin": "import",
        "voted_at": at,
        "idempotency_key": f"{comparison}/{by}/{day}/{choice}",
    }
    return make_vote(comparison, by, choice, **{**values, **more})


def test_pending_days_are_listed_oldest_first(store: Store) -> None:
    store.replays.request([DAYS[1], DAYS[0], DAYS[1]])
    store.replays.request([DAYS[2]])
    assert store.replays.pending_days() == list(DAYS)
    assert store.replays.mark_done(DAYS[0])
    assert store.replays.pending_days() == [DAYS[1], DAYS[2]]
    store.replays.request([DAYS[0]])
    assert store.replays.pending_days() == list(DAYS)


def test_unrequested_imported_days_are_listed(
    store: Store, make_comparisons: Callable[..., pd.DataFrame], make_vote: Any
) -> None:
    store.comparisons.publish(imported(make_comparisons), published_at=NOW)
    live = vote(make_vote, "c2", DAYS[2], origin="api")
    store.votes.cast_many(
        [
            vote(make_vote, "c0", DAYS[1]),
            vote(make_vote, "c1", DAYS[0]),
            vote(make_vote, "c1", None),
            live,
        ]
    )
    # neither the undated vote nor the live one makes a day
    assert store.replays.unrequested_days() == [DAYS[0], DAYS[1]]
    store.replays.request([DAYS[0]])
    assert store.replays.unrequested_days() == [DAYS[1]]
    store.replays.mark_done(DAYS[0])
    assert store.replays.unrequested_days() == [DAYS[1]]
    store.votes.cast(vote(make_vote, "c2", DAYS[0]))  # imported after that day was replayed
    assert store.replays.unrequested_days() == [DAYS[0], DAYS[1]]


def test_day_with_unreplayed_votes_is_not_done(
    store: Store, make_comparisons: Callable[..., pd.DataFrame], make_vote: Callable[..., NewVote]
) -> None:
    store.comparisons.publish(imported(make_comparisons), published_at=NOW)
    store.votes.cast_many([vote(make_vote, "c0", DAYS[0]), vote(make_vote, "c1", DAYS[1])])
    store.replays.request([DAYS[0]])
    store.votes.cast(vote(make_vote, "c0", DAYS[0], by="late"))
    assert not store.replays.mark_done(DAYS[0], up_to_seq=1)
    assert store.replays.mark_done(DAYS[0], up_to_seq=3)
    assert store.replays.pending_days() == []


def test_replay_predicts_comparisons_first_judged_that_day(
    store: Store, make_comparisons: Callable[..., pd.DataFrame], make_vote: Callable[..., NewVote]
) -> None:
    store.comparisons.publish(imported(make_comparisons, 4), published_at=NOW)
    store.comparisons.publish(
        imported(make_comparisons, 1, flag="identical", prefix="flagged"), published_at=NOW
    )
    store.comparisons.publish(make_comparisons(1, prefix="own"), published_at=NOW)
    store.votes.cast_many(
        [
            vote(make_vote, "c0", DAYS[0]),
            vote(make_vote, "c1", DAYS[1]),
            vote(make_vote, "c0", DAYS[1], by="second"),
            vote(make_vote, "flagged0", DAYS[1]),
            vote(make_vote, "own0", DAYS[1]),
            vote(make_vote, "c2", DAYS[1]),
            vote(make_vote, "c3", None),
            vote(make_vote, "c2", DAYS[2], by="second"),
        ]
    )
    assert store.predictions.find_unpredicted(DAYS[0], data_seq=0) == ["c0"]
    assert store.predictions.find_unpredicted(DAYS[1], data_seq=1) == ["c1", "c2"]
    # the vote on c1 may have been learnt from
    assert store.predictions.find_unpredicted(DAYS[1], data_seq=2) == ["c2"]
    assert store.predictions.find_unpredicted(DAYS[2], data_seq=1) == []


def test_replay_predictions_use_no_later_votes(
    store: Store,
    make_comparisons: Callable[..., pd.DataFrame],
    make_predictions: Callable[..., pd.DataFrame],
    make_vote: Callable[..., NewVote],
) -> None:
    frame = imported(make_comparisons, 5)
    store.comparisons.publish(frame, published_at=NOW)
    store.votes.cast_many(
        [
            vote(make_vote, "c0", DAYS[0]),
            vote(make_vote, "c4", None, by="undated"),
            vote(make_vote, "c1", DAYS[2]),
        ]
    )
    # older days come in later
    store.votes.cast_many([vote(make_vote, "c2", DAYS[1]), vote(make_vote, "c3", DAYS[1])])
    # seen: a day before, and a vote of no day
    assert store.predictions.find_unpredicted(DAYS[1], data_seq=2) == ["c2", "c3"]
    assert store.predictions.count_left_out(DAYS[1], data_seq=2) == 0
    assert store.predictions.find_unpredicted(DAYS[1], data_seq=3) == []
    assert store.predictions.count_left_out(DAYS[1], data_seq=3) == 2
    # nobody is left out of a day that is not in the past
    assert store.predictions.count_left_out(DAYS[2], data_seq=3) == 0
    assert (
        store.predictions.count_left_out(DAYS[0], data_seq=3) == 0
    )  # learnt from itself, not late
    predicted = make_predictions(frame.iloc[2:4]).assign(day=DAYS[1])
    replay = store.predictions.replay(predicted, data_seq=3)
    assert (replay.n_written, replay.n_refused) == (0, 2)
    assert store.predictions.replay(predicted, data_seq=2).n_written == 2
    assert store.predictions.count_left_out(DAYS[1], data_seq=3) == 0  # predicted honestly before


def test_later_pass_keeps_its_own_sides(
    store: Store, make_comparisons: Callable[..., pd.DataFrame], make_vote: Callable[..., NewVote]
) -> None:
    store.comparisons.publish(imported(make_comparisons), published_at=NOW)
    store.votes.cast_many(
        [vote(make_vote, "c0", DAYS[0], choice="a"), vote(make_vote, "c1", DAYS[0], choice="b")]
    )
    store.votes.cast_many(
        [vote(make_vote, "c0", DAYS[1], choice="b"), vote(make_vote, "c1", DAYS[1], choice="b")]
    )
    store.votes.cast_many([vote(make_vote, "c0", DAYS[2], choice="a")])
    passes = repeat_passes(store.votes.log())
    rows = passes[
        ["prompt_id", "comparison_id", "pass_no", "choice_first", "choice"]
    ].values.tolist()
    assert rows == [["p0", "c0", 2, "a", "b"], ["p1", "c1", 2, "b", "b"], ["p0", "c0", 3, "a", "a"]]
    assert repeat_passes(store.votes.log([DAYS[0]])).empty
    assert repeat_passes(store.votes.log(up_to_seq=3))["comparison_id"].tolist() == ["c0"]
    # the first word on c0 came before
    log = store.votes.log()
    assert repeat_passes(log[log["seq"] > 1])["comparison_id"].tolist() == ["c1"]
    assert repeat_passes(log[log["seq"] > 2]).empty


def fire(evidence: TriggerEvidence) -> TriggerDecision:
    looked_at = {
        "n_new_votes": evidence.n_new_votes,
        "last_fired_at": str(evidence.last_fired_at),
        "max_seq": evidence.max_seq,
    }
    return TriggerDecision(
        action="fire",
        reasons=("test",),
        event_ids=(),
        evidence=looked_at,
        change_seq=None,
        decided_at=evidence.now,
    )


@pytest.fixture
def voted(
    store: Store, make_comparisons: Callable[..., pd.DataFrame], make_vote: Callable[..., NewVote]
) -> Store:
    store.comparisons.publish(imported(make_comparisons, 5), published_at=NOW)
    store.votes.cast_many([vote(make_vote, f"c{i}", DAYS[i // 2]) for i in range(5)])
    return store


def test_a_replayed_day_decides_on_the_votes_known_then(
    voted: Store, make_event: Callable[..., DriftEvent]
) -> None:
    ends = [datetime.fromisoformat(f"{day}T23:59:59+00:00") for day in DAYS]
    voted.events.add([make_event(1)])
    first = voted.decisions.apply_rule(fire, now=ends[0], champion=MODEL, up_to_seq=2)
    voted.events.add([make_event(3)])
    second = voted.decisions.apply_rule(fire, now=ends[1], champion=MODEL, up_to_seq=4)
    assert first is not None
    assert first.evidence == {"n_new_votes": 2, "last_fired_at": "None", "max_seq": 2}
    assert second is not None
    assert second.evidence == {"n_new_votes": 2, "last_fired_at": str(ends[0]), "max_seq": 4}
