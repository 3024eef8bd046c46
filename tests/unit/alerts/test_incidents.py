"""One alert per incident: opened, reminded of, escalated, silenced, resolved, by a fake clock."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.alerts.evaluation import evaluate
from rlhf_pipeline.alerts.incidents import Notification, acknowledge, advance, resolve
from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.alerts.rules import AlertParams, merge_rules
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import Silence

START = datetime(2026, 1, 10, 12, tzinfo=UTC)
TARGETS = ("log", "team", "boss")
PARAMS = AlertParams(
    levels=[["log", "team"], ["boss"]], escalate_after_minutes=30, remind_after_hours=4
)


class World:
    """The alerts of a project whose queue is as old as the test says."""

    def __init__(self, rule=None, params=PARAMS, targets=TARGETS):
        self.now, self.alerts, self.ended, self.sent = START, {}, [], []
        self.silences = []
        self.rules = merge_rules({"queue_age": rule or {}})
        self.notification = Notification.of(
            params, targets, project="demo", web_url="http://127.0.0.1:8080/"
        )

    def tick(self, value, minutes=1.0, only=None, readings=None):
        """Let time pass, look once; the messages sent, as `kind>target`."""
        self.now += timedelta(minutes=minutes)
        read = [Reading("queue.oldest_hours", self.now, value)] if readings is None else readings
        step = advance(
            list(self.alerts.values()),
            evaluate(self.rules.values(), read, self.now),
            self.silences,
            self.notification,
            self.now,
            next_id=1 + max([*self.alerts, *(a.alert_id for a in self.ended)], default=0),
            only=only,
        )
        for alert in step.changed:
            self.alerts[alert.alert_id] = alert
            if alert.ended_at:
                self.ended.append(self.alerts.pop(alert.alert_id))
        for number in step.dropped:
            del self.alerts[number]
        self.sent += step.messages
        return [f"{m.kind}>{m.target}" for m in step.messages]

    def alert(self):
        (found,) = self.alerts.values()
        return found

    def change(self, alert, messages=()):
        self.alerts[alert.alert_id] = alert
        self.sent += messages


def test_an_incident_opens_once_and_resolves_once():
    world = World()
    assert world.tick(80) == ["opened>log", "opened>team"]
    assert world.tick(81) == []
    assert world.tick(3) == ["resolved>log", "resolved>team"]
    assert world.tick(3) == []
    assert world.ended[0].state == "resolved"
    assert world.ended[0].resolved_by is None


def test_a_message_holds_cause_figures_and_link():
    world = World()
    world.tick(80)
    payload = world.sent[0].payload
    assert payload["type"] == "alert.opened"
    data = payload["data"]
    assert data["title"].startswith("The oldest comparison has waited 80 hours")
    assert (data["value"], data["threshold"], data["severity"]) == (80, 72, "warning")
    assert data["link"] == "http://127.0.0.1:8080/progress"
    assert data["next_step"] == "Ask annotators to vote, or withdraw comparisons."
    assert world.alerts[1].link == "/progress"
    assert len({m.message_id for m in world.sent}) == 2


def test_near_the_threshold_an_alert_neither_opens_nor_ends():
    world = World({"threshold": 72, "resolve_at": 48})
    assert world.tick(60) == []
    world.tick(80)
    assert world.tick(60) == []
    assert world.tick(48) == ["resolved>log", "resolved>team"]


def test_a_missing_figure_changes_nothing_and_a_missing_subject_ends():
    world = World()
    world.tick(80)
    assert world.tick(None) == []
    assert world.tick(None, readings=[]) == ["resolved>log", "resolved>team"]


def test_an_alert_without_new_figures_stays_open_and_says_since_when():
    world = World()
    old = Reading("agreement.rate", START, 0.4, of_day=START.date())
    world.tick(None, readings=[old])
    assert world.tick(None, minutes=3 * 24 * 60, readings=[old]) == ["escalated>boss"]
    assert world.alert().title.endswith("(no figure since 2026-01-10)")
    assert world.tick(None, minutes=4 * 60, readings=[old]) == [
        "reminder>log", "reminder>team", "reminder>boss",
    ]  # fmt: skip
    new = Reading("agreement.rate", world.now, 0.7, of_day=world.now.date())
    assert len(world.tick(None, readings=[old, new])) == 3
    assert world.ended[0].state == "resolved"


def test_a_condition_that_is_not_measured_does_not_last():
    world = World({"for_minutes": 10})
    world.tick(80)
    world.tick(None, minutes=9)
    assert world.tick(80) == []
    assert world.tick(80, minutes=10) == ["opened>log", "opened>team"]


def test_the_log_stands_in_for_an_unknown_target():
    world = World(params=AlertParams(levels=[["bos"]]))
    assert world.tick(80) == ["opened>log"]


def test_progress_of_the_answer_shows_at_once():
    world = World()
    world.tick(80)
    served = Reading("queue.oldest_hours", world.now, 80, progress="answered, not served")
    assert world.tick(None, readings=[served]) == []
    assert world.alert().progress == "answered, not served"


def test_an_alert_newer_than_the_figures_stays_open():
    world = World()
    world.tick(80)
    world.tick(None, minutes=-1, readings=[])
    assert world.alert().state == "open"


def test_a_condition_must_last_as_long_as_its_rule_says():
    world = World({"for_minutes": 10})
    assert world.tick(80) == []
    assert world.alert().state == "pending"
    assert world.tick(80, minutes=5) == []
    assert world.tick(10, minutes=1) == []
    assert world.alerts == {}
    world.tick(80)
    assert world.tick(80, minutes=10) == ["opened>log", "opened>team"]


def test_an_alert_that_nobody_acknowledges_goes_to_the_next_level():
    world = World()
    world.tick(80)
    assert world.tick(80, minutes=29) == []
    assert world.tick(80, minutes=1) == ["escalated>boss"]
    assert world.tick(80, minutes=60) == []
    assert world.tick(1) == ["resolved>log", "resolved>team", "resolved>boss"]


def test_an_open_alert_is_reminded_of():
    world = World()
    world.tick(80)
    world.tick(80, minutes=30)
    assert world.tick(80, minutes=4 * 60) == ["reminder>log", "reminder>team", "reminder>boss"]
    assert world.tick(80, minutes=60) == []


def test_an_acknowledged_alert_is_neither_escalated_nor_reminded_of():
    world = World()
    world.tick(80)
    world.change(acknowledge(world.alert(), "ada", world.now))
    assert world.tick(80, minutes=600) == []
    assert world.tick(1) == ["resolved>log", "resolved>team"]
    with pytest.raises(StoreError, match="only an open alert"):
        acknowledge(world.ended[0], "ada", world.now)


def test_an_alert_closed_by_hand_opens_again_only_after_its_condition_ended():
    world = World()
    world.tick(80)
    closed, messages = resolve(world.alert(), "ada", world.notification, world.now)
    world.change(closed, messages)
    assert [m.kind for m in messages] == ["resolved", "resolved"]
    assert world.tick(80, minutes=300) == []
    assert world.tick(1) == []
    assert world.ended[0].resolved_by == "ada"
    assert world.tick(80) == ["opened>log", "opened>team"]


def test_a_silence_stops_sending_but_not_recording():
    world = World()
    world.silences.append(
        Silence(
            silence_id=1,
            rule="queue_age",
            reason="holidays",
            created_by="ada",
            created_at=START,
            ends_at=START + timedelta(hours=1),
        )
    )
    assert world.tick(80) == []
    assert world.alert().state == "open"
    assert world.tick(80, minutes=59) == ["opened>log", "opened>team"]


def test_the_end_is_told_even_while_silenced():
    world = World()
    world.tick(80)
    world.silences.append(
        Silence(
            silence_id=1,
            reason="quiet",
            created_by="ada",
            created_at=START,
            ends_at=START + timedelta(days=1),
        )
    )
    assert world.tick(80, minutes=45) == []
    assert world.tick(1) == ["resolved>log", "resolved>team"]


def test_an_edited_threshold_acts_on_the_next_tick():
    world = World()
    assert world.tick(60) == []
    world.rules = merge_rules({"queue_age": {"threshold": 50}})
    assert world.tick(60) == ["opened>log", "opened>team"]
    world.rules = merge_rules({"queue_age": {"is_on": False}})
    assert world.tick(60) == ["resolved>log", "resolved>team"]


def test_rules_that_are_not_looked_at_stay_as_they_are():
    world = World()
    world.tick(80)
    silent = [Reading("daemon.silent_seconds", world.now, 900.0)]
    world.tick(None, readings=silent, only={"daemon_silent"})
    assert {a.rule: a.state for a in world.alerts.values()} == {
        "queue_age": "open",
        "daemon_silent": "pending",
    }


def test_without_levels_all_targets_hear_of_it_at_once():
    world = World(params=AlertParams())
    assert world.tick(80) == ["opened>log", "opened>team", "opened>boss"]


def test_without_targets_alerts_are_recorded_and_sent_once_there_is_one():
    world = World(params=AlertParams(), targets=())
    assert world.tick(80) == []
    world.notification = Notification.of(AlertParams(), ["team"], project="demo", web_url="")
    assert world.tick(80) == ["opened>team"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.0, 60.0, 80.0, None]),
            st.sampled_from([1, 20, 45, 300]),
            st.sampled_from(["", "acknowledge", "resolve"]),
        ),
        max_size=30,
    )
)
def test_every_target_is_told_of_an_alert_and_of_its_end_once(steps):
    """Whatever happens, messages of an alert to a target are one opening and at most one end."""
    world = World({"threshold": 72, "resolve_at": 48})
    for value, minutes, act in steps:
        world.tick(value, minutes=minutes)
        for alert in [a for a in world.alerts.values() if a.state == "open" and act]:
            if act == "acknowledge":
                world.change(acknowledge(alert, "ada", world.now))
            else:
                world.change(*resolve(alert, "ada", world.notification, world.now))
    world.tick(1)
    assert not world.alerts
    of_target = {}
    for message in world.sent:
        of_target.setdefault((message.alert_id, message.target), []).append(message.kind)
    for kinds in of_target.values():
        assert kinds[0] in ("opened", "escalated")
        assert kinds[-1] == "resolved"
        assert kinds.count("resolved") == 1
        assert kinds.count("opened") + kinds.count("escalated") == 1
