"""Metric points are replaced or added up; messages leave the outbox once."""

from datetime import date, timedelta

import pytest

from rlhf_pipeline.core.api_types.filters import AlertMessageFilter, AuditFilter
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.monitoring import AlertMessage, MetricPoint
from tests.unit.store.conftest import NOON

DAY = date(2026, 1, 1)


def point(day=DAY, labels=None, **more):
    return MetricPoint(day=day, name="votes.seconds", labels=labels or {}, measured_at=NOON, **more)


def message(message_id="msg_1", **more):
    return AlertMessage(
        message_id=message_id,
        alert_id=1,
        target="team",
        kind="opened",
        payload={"title": "drift"},
        created_at=NOON,
        next_attempt_at=NOON,
        **more,
    )


def test_repeated_point_replaces_the_first(store):
    store.metric_points.put([point(n=1, value=1.0), point(labels={"model": "7"}, value=3.0)])
    store.metric_points.put([point(n=2, value=2.0)])
    assert [p.value for p in store.metric_points.read(["votes.seconds"])] == [3.0, 2.0]


def test_points_are_found_by_day_and_label(store):
    late = date(2026, 1, 5)
    store.metric_points.put(
        [
            point(value=1.0),
            point(labels={"model": "7", "head": "all"}, value=2.0),
            point(day=late, value=3.0),
        ]
    )
    read = store.metric_points.read
    assert [p.value for p in read(["votes.seconds"], since=late)] == [3.0]
    assert [p.value for p in read(["votes.seconds"], labels={"model": "7"})] == [2.0]
    assert [p.value for p in store.metric_points.latest(["votes.seconds"])] == [2.0, 3.0]
    assert read(["no.such"]) == []


def test_message_has_one_sender_until_its_lease_ends(store):
    outbox = store.alert_messages
    outbox.add([message()])
    assert outbox.lease("team", NOON, seconds=60).n_attempts == 1
    assert outbox.lease("team", NOON, seconds=60) is None
    assert outbox.lease("team", NOON + timedelta(seconds=60), seconds=60).n_attempts == 2


def test_a_message_waits_for_the_earlier_one_about_its_alert(store):
    outbox = store.alert_messages
    later = {"created_at": NOON + timedelta(seconds=1)}
    outbox.add(
        [
            message("msg_1"),
            message("msg_2").model_copy(update=later),
            message("msg_3").model_copy(update={**later, "target": "boss"}),
            message("msg_4").model_copy(update={**later, "alert_id": 2}),
        ]
    )
    assert outbox.due_targets(NOON) == ["boss", "team"]
    leased = [outbox.lease("team", NOON, seconds=60) for _ in range(3)]
    assert [m and m.message_id for m in leased] == ["msg_1", "msg_4", None]
    assert outbox.due_targets(NOON) == ["boss"]
    outbox.mark_delivered("msg_1", NOON)
    assert outbox.lease("team", NOON, seconds=60).message_id == "msg_2"


def test_delivered_message_is_not_sent_again(store):
    outbox = store.alert_messages
    outbox.add([message()])
    outbox.mark_delivered("msg_1", NOON)
    outbox.mark_failed("msg_1", "too late", next_attempt_at=NOON)
    assert outbox.lease("team", NOON + timedelta(days=1), seconds=60) is None
    assert outbox.get("msg_1").delivered_at == NOON


def test_only_old_delivered_messages_are_pruned(store):
    outbox = store.alert_messages
    outbox.add([message(f"msg_{n}") for n in range(4)])
    outbox.mark_delivered("msg_0", NOON - timedelta(days=91))
    outbox.mark_delivered("msg_1", NOON)
    outbox.mark_failed("msg_2", "answered 410", next_attempt_at=None)
    before = NOON - timedelta(days=90)
    assert outbox.prune(delivered_before=before) == 1
    assert [m.message_id for m in outbox.page()] == ["msg_1", "msg_2", "msg_3"]


def test_replayed_dead_message_is_sent_again(store):
    outbox = store.alert_messages
    outbox.add([message()])
    outbox.mark_failed("msg_1", "answered 500", next_attempt_at=None)
    assert [m.last_error for m in outbox.page(AlertMessageFilter(state="dead"))] == ["answered 500"]
    assert outbox.lease("team", NOON, seconds=60) is None
    assert outbox.replay("msg_1", NOON, actor="ada").state == "pending"
    assert outbox.lease("team", NOON, seconds=60).message_id == "msg_1"
    (link,) = store.audit.page(AuditFilter(action="alert.replay", limit=9))[0]
    assert (link.actor, link.object_id) == ("ada", "msg_1")
    with pytest.raises(NotFound, match="No dead message msg_1"):
        outbox.replay("msg_1", NOON, actor="ada")
