"""Rounds over a store: an invalid settings file leaves alerts as they are."""

from datetime import timedelta
from pathlib import Path

import pytest

from rlhf_pipeline.core.config import HomeFacts, ServedCheck, ServedState, Settings
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import GateCheck, GateDecision
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts import readings
from rlhf_pipeline.watch.alerts.rounds import advance_alerts, gather_readings, read_plan
from tests.unit.watch.alerts.conftest import NOON, ManualClock

VALID = """\
loop:
  completions: {budget_per_day: 10}
  alerts:
    rules:
      waiting: {reads: queue.open, threshold: 3}
      queue_age: {is_on: false}
"""
FIGURES = {
    "queue.open": 5.0,
    "queue.oldest_hours": 90.0,
    "votes.idle_hours": 1.0,
    "spend.amount": 9.0,
}


class Project:
    """A store and a settings file, looked at once a minute."""

    def __init__(self, store: Store, clock: ManualClock, home: Path):
        self.store, self.clock, self.file = store, clock, home / "rlhf.yaml"
        self.settings = Settings(home=home, config=self.file)

    def look(self, text: str) -> dict[str, str]:
        """One round with this settings file, as the sensor makes it; states by rule."""
        self.file.write_text(text)
        self.clock.advance(minutes=1)
        now, plan = self.clock.now(), read_plan(self.settings)
        readings = gather_readings(self.store, self.settings, plan, now)
        advance_alerts(self.store, plan, readings, now)
        return {alert.rule: alert.state for alert in self.store.alerts.page()}

    def measure(self, **figures: float) -> None:
        now = self.clock.now()
        self.store.metric_points.put(
            [
                MetricPoint(day=now.date(), name=name, value=value, measured_at=now)
                for name, value in figures.items()
            ]
        )


@pytest.fixture
def project(store: Store, clock: ManualClock, tmp_path: Path) -> Project:
    return Project(store, clock, tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        "loop: [",
        VALID.replace("threshold: 3", "treshold: 3"),
        VALID.replace("budget_per_day: 10", "budget_per_day: much"),
    ],
    ids=["no yaml", "invalid rule", "invalid budget"],
)
def test_an_invalid_file_neither_resolves_nor_opens_alerts(project: Project, broken: str) -> None:
    project.measure(**FIGURES)
    opened = {"waiting": "open", "spend": "open"}
    assert project.look(VALID) == opened
    assert project.look(broken) == opened | {"settings_unusable": "open"}
    assert project.look(VALID) == opened | {"settings_unusable": "resolved"}
    assert len(project.store.alerts.page()) == 3


def test_a_refusal_of_the_gate_names_what_failed() -> None:
    checks = (
        GateCheck(name="win_rate", passed=False, reason="win rate 0.48 is below 0.5"),
        GateCheck(name="length", passed=True, reason="fine"),
    )
    refused = GateDecision(
        candidate="demo.policy@2", champion="demo.policy@1", promoted=False, checks=checks
    )
    (reading,) = readings.read_gate(refused)
    assert (reading.value, reading.detail) == (1.0, "win rate 0.48 is below 0.5")
    assert reading.link == "/evolution#policy-2"


def test_other_served_policy_opens_an_alert_until_it_is_the_judged_one(project: Project) -> None:
    HomeFacts.of(project.settings).write(project.settings.home)

    def look(state: ServedState) -> dict[str, str]:
        check = ServedCheck(version="p@2", checked_at=NOON, state=state, reason="other weights")
        HomeFacts.change(project.settings.home, served=check)
        return project.look("")

    assert look("other precision") == {}
    assert look("differs") == look("not checkable") == {"served_differs": "open"}
    [alert] = project.store.alerts.page()
    assert alert.title == "What serves is not the judged version p@2: other weights"
    assert look("as judged") == {"served_differs": "resolved"}


def test_silence_is_counted_from_the_last_tick() -> None:
    tick = MetricPoint(day=NOON.date(), name="daemon.silent_seconds", value=0.0, measured_at=NOON)
    ended = tick.model_copy(update={"value": None})
    for last, seconds, expected in (
        (tick, 600, [600.0]),
        (tick, 170, [0.0]),
        (ended, 600, [None]),
        (None, 600, []),
    ):
        now = NOON + timedelta(seconds=seconds)
        silences = readings.read_silence(last, now, expected_s=60)
        assert [reading.value for reading in silences] == expected
