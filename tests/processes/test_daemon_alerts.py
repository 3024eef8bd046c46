"""Flipped votes, a real daemon, one signed webhook with cause and link, and its end after the
retraining.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from standardwebhooks import Webhook

from benchmarks.flipped_votes import flip_votes
from rlhf_pipeline.monitoring import Alert
from tests.processes.daemon_home import daemons, eventually, ticked_again, ticks
from tests.unit.alerts.receivers import Hook, serve_hook

pytestmark = pytest.mark.timeout(900)

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"


@dataclass
class Incident:
    """A project whose votes were flipped while its daemon ran, and what the receiver got."""

    project: Any
    hook: Hook
    opened: Alert

    def received(self) -> list[dict[str, Any]]:
        """The payloads, each with a signature that the receiver verifies."""
        return [
            Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
            for headers, body in self.hook.received
        ]

    def of_drift(self) -> list[Mapping[str, Any]]:
        return [each for each in self.received() if each["data"]["rule"] == "drift"]


def drift_alerts(project: Any) -> list[Alert]:
    found: list[Alert] = project.store.alerts.page(
        rule="drift", states=["open", "acknowledged", "resolved"]
    )
    return found


@pytest.fixture(scope="module")
def incident(
    grown: Any, branch: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Incident]:
    project = branch(
        grown,
        persistent=True,
        sensor_seconds=2,
        slow_sensor_seconds=2,
        quiet_minutes=0.02,
    )
    day = project.day(3)
    project.collect(day)
    with serve_hook(Hook()) as hook:
        team = {"channel": "webhook", "url": hook.url, "secret": SECRET}
        environ = project.environ | {
            "RLHF_ALERT_TARGETS": json.dumps({"team": team}),
            "RLHF_ALERT_ALLOW_PRIVATE": "true",
        }
        with daemons(environ, tmp_path_factory.mktemp("daemon")):
            eventually(lambda: ticks(project.instance, "alerts"), seconds=120, what="a first tick")
            project.store.votes.cast_many(flip_votes(project.store, day, n=150))
            opened = eventually(
                lambda: drift_alerts(project), seconds=240, what="an alert about the change"
            )[0]
            yield Incident(project, hook, opened)


def test_flipped_votes_open_one_alert_with_cause_and_decision(incident: Incident) -> None:
    alert = incident.opened
    (decision,) = incident.project.store.decisions.all()
    assert alert.subject == f"decision {decision.decision_id}"
    assert alert.evidence["detectors"]
    assert alert.evidence["cause"] == "taste"
    assert alert.evidence["shares"]["taste"] > 0.5
    assert alert.evidence["remedy"] == decision.remedy
    assert alert.severity == "critical"


def test_the_receiver_gets_one_signed_message_with_a_link(incident: Incident) -> None:
    (message,) = eventually(incident.of_drift, seconds=60, what="a message to the webhook")[:1]
    assert message["type"] == "alert.opened"
    assert message["data"]["title"].startswith("Preferences drifted: ")
    assert message["data"]["cause"] == "taste"
    assert message["data"]["evidence"]["n_events"] >= 1
    assert message["data"]["link"].startswith("http://127.0.0.1:3000/")
    eventually(
        ticked_again(incident.project.instance, "alerts", 3), seconds=60, what="three more ticks"
    )
    assert [each["type"] for each in incident.of_drift()][:2] in (
        ["alert.opened"],
        ["alert.opened", "alert.resolved"],
    )


def test_the_alert_ends_with_the_retraining(incident: Incident) -> None:
    store = incident.project.store
    (decided, *_) = store.decisions.all()
    eventually(
        lambda: drift_alerts(incident.project)[-1].state == "resolved",
        seconds=480,
        what="the end of the alert",
        every=1,
    )
    champion = store.promotions.champion(incident.project.settings.reward_model)
    assert champion.label != decided.evidence["looked_at"]["champion"]
    assert f"{champion.label} is the champion now" in drift_alerts(incident.project)[-1].resolution
    kinds = eventually(
        lambda: found if len(found := [m["type"] for m in incident.of_drift()]) > 1 else [],
        seconds=60,
        what="a second message",
    )
    assert kinds == ["alert.opened", "alert.resolved"]


def test_no_tick_of_the_sensor_failed(incident: Incident) -> None:
    failed = [
        tick.error.message
        for tick in ticks(incident.project.instance, "alerts")
        if tick.status.value == "FAILURE"
    ]
    assert failed == []
    measured = incident.project.store.metric_points.latest(["sensors.lag_seconds"])
    assert {"alerts", "votes", "retraining"} <= {point.labels["sensor"] for point in measured}
