"""Alerts are stored with their messages and their authors."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.api_types.filters import AlertFilter, AlertMessageFilter
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.watch.alerts.incidents import AlertPlan, acknowledge, resolve
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rounds import advance_alerts
from rlhf_pipeline.watch.alerts.rules import RULES, AlertParams
from tests.unit.store.conftest import NOON

TEAM = AlertPlan(RULES, AlertParams(levels=[["team"]]), ("team",))


def tick(store, value, minutes=0, name="queue.oldest_hours"):
    now = NOON + timedelta(minutes=minutes)
    return advance_alerts(store, TEAM, [Reading(name, now, value)], now)


def test_an_alert_and_its_message_are_stored_together(store):
    tick(store, 80.0)
    (alert,) = store.alerts.page()
    assert (alert.alert_id, alert.state, alert.targets) == (1, "open", ("team",))
    (message,) = store.alert_messages.page(AlertMessageFilter(alert_id=1))
    assert (message.kind, message.target) == ("opened", "team")
    tick(store, 1.0, minutes=1)
    assert store.alerts.page()[0].state == "resolved"
    assert {m.kind for m in store.alert_messages.page()} == {"opened", "resolved"}
    tick(store, 80.0, minutes=2)
    assert [a.alert_id for a in store.alerts.page()] == [2, 1]
    assert [
        a.alert_id for a in store.alerts.page(AlertFilter(state=["open"], rule="queue_age"))
    ] == [2]
    assert [a.alert_id for a in store.alerts.page(before_id=2)] == [1]


def test_a_change_by_hand_is_in_the_audit_chain(store):
    tick(store, 80.0)
    store.alerts.change(
        1, lambda alert: acknowledge(alert, "ada", NOON), actor="ada", action="acknowledge"
    )
    assert store.alerts.page()[0].acknowledged_by == "ada"
    (link, *_) = store.audit.page()[0]
    assert (link.action, link.actor, link.object_id) == ("alert.acknowledge", "ada", "alert 1")
    store.audit.verify()
    with pytest.raises(NotFound, match="no alert 9"):
        store.alerts.change(9, lambda alert: alert, actor="ada", action="acknowledge")


def test_an_alert_resolved_by_hand_lasts_until_its_condition_ends(store):
    tick(store, 80.0)
    store.alerts.change(1, lambda alert: resolve(alert, "ada", NOON), actor="ada", action="resolve")
    assert store.alerts.oldest_ongoing_at() == NOON
    tick(store, 1.0, minutes=1)
    assert store.alerts.oldest_ongoing_at() is None
