"""One alert per incident: opened, reminded of, escalated, resolved, by a fake clock."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.core.errors import AlertState
from rlhf_pipeline.watch.alerts.incidents import AlertPlan, acknowledge, advance, resolve
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rules import AlertParams, merge_rules

START = datetime(2026, 1, 10, 12, tzinfo=UTC)
TARGETS = ("log", "team", "boss")
PARAMS = AlertParams(
    levels=[["log", "team"], ["boss"]], escalate_after_minutes=30, remind_after_hours=4
)


class World:
    """The alerts of a project whose queue is as old as the test says."""

    def __init__(self, rule=None, params=PARAMS, targets=TARGETS):
        self.now, self.alerts, self.ended, self.sent = START, {}, [], []
        self.plan = AlertPlan(
            merge_rules({"queue_age": rule or {}}),
            params,
            targets,
            project="demo",
            web_url="http://127.0.0.1:8080/",
        )

    def tick(self, value, minutes=1.0, only=None, readings=None):
        """Let time pass, look once; the messages sent, as `kind>target`."""
        self.now += timedelta(minutes=minutes)
        read = [Reading("queue.oldest_hours", self.now, value)] if readings is None else readings
        step = advance(
            self.plan,
            list(self.alerts.values()),
            read,
            self.now,
            next_id=1 + max([*self.alerts, *(a.alert_id for a in self.ended)], default=0),
            only=only,
        )
        for alert in step.changed:
            self.alerts[alert.alert_id] = alert
            if alert.ended_at:
                self.ended.append(self.alerts.pop(alert.alert_id))
        self.sent += step.messages
        return [f"{m.kind}>{m.target}" for m in step.messages]

    def act(self, change):
        """Change the open alert by hand."""
        before = self.alert()
        changed = change(before, "ada", self.now)
        self.alerts[changed.alert_id] = changed
        if changed.state == "resolved":
            self.sent += self.plan.build(changed, "resolved", changed.targets, self.now)

    def alert(self):
        (alert,) = self.alerts.values()
        return alert


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


def test_missing_figure_keeps_an_alert_and_missing_subject_ends_it():
    world = World()
    world.tick(80)
    assert world.tick(None) == []
    assert world.tick(None, readings=[]) == ["resolved>log", "resolved>team"]


def test_condition_must_last_for_the_configured_time():
    world = World({"for_minutes": 10})
    assert world.tick(80) == []
    assert world.alert().state == "pending"
    assert world.tick(80, minutes=5) == []
    assert world.tick(10, minutes=1) == []
    assert world.alerts == {}
    world.tick(80)
    assert world.tick(80, minutes=10) == ["opened>log", "opened>team"]


def test_unacknowledged_alert_is_escalated_and_repeated():
    world = World()
    assert world.tick(80) == ["opened>log", "opened>team"]
    assert world.tick(80, minutes=29) == []
    assert world.tick(80, minutes=1) == ["escalated>boss"]
    assert world.tick(80, minutes=60) == []
    assert world.tick(80, minutes=180) == ["reminder>log", "reminder>team", "reminder>boss"]
    assert world.tick(1) == ["resolved>log", "resolved>team", "resolved>boss"]
    assert world.ended[0].resolved_by is None


@pytest.mark.parametrize(
    ("levels", "recipients"),
    [
        ([["bos"]], ["opened>log"]),
        ([], ["opened>log", "opened>team", "opened>boss"]),
        ([[], ["boss"]], ["opened>boss"]),
        ([["team", "team", "log", "bos"]], ["opened>team", "opened>log"]),
        ([[]], []),
    ],
    ids=["unknown target", "no levels", "empty level", "repeated names", "nobody"],
)
def test_first_messages_go_to_the_first_level(levels, recipients):
    assert World(params=AlertParams(levels=levels)).tick(80) == recipients


def test_acknowledged_alert_is_not_escalated_or_repeated():
    world = World()
    world.tick(80)
    world.act(acknowledge)
    assert world.tick(80, minutes=600) == []
    assert world.tick(1) == ["resolved>log", "resolved>team"]
    with pytest.raises(AlertState, match="only an open alert"):
        acknowledge(world.ended[0], "ada", world.now)


def test_manually_closed_alert_reopens_after_its_condition_ended():
    world = World()
    world.tick(80)
    world.act(resolve)
    assert [m.kind for m in world.sent[2:]] == ["resolved", "resolved"]
    assert world.tick(80, minutes=300) == []
    assert world.tick(1) == []
    assert world.ended[0].resolved_by == "ada"
    assert world.tick(80) == ["opened>log", "opened>team"]


def test_late_round_keeps_newer_alerts():
    world = World()
    world.tick(80)
    assert world.tick(1, minutes=-1) == []
    assert world.alert().state == "open"


@settings(max_examples=60, deadline=None, derandomize=True)
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
def test_every_target_receives_start_and_end_once(steps):
    """Whatever happens, messages of an alert to a target are one opening and at most one end."""
    world = World({"threshold": 72, "resolve_at": 48})
    for value, minutes, act in steps:
        world.tick(value, minutes=minutes)
        if act and any(alert.state == "open" for alert in world.alerts.values()):
            world.act(acknowledge if act == "acknowledge" else resolve)
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
