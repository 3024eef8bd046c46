"""A fresh demo home with the daemon running: flipped votes, one signed webhook with cause, evidence
and link, and its resolution after the retraining.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from standardwebhooks import Webhook

from benchmarks.flipped_votes import flip_votes
from rlhf_pipeline.config import Settings
from rlhf_pipeline.monitoring import Alert
from rlhf_pipeline.records import Promotion, TriggerDecision
from rlhf_pipeline.store import Store
from tests.once import build_once
from tests.processes.daemon_home import BINARIES, ROOT, daemons, eventually, ticked_again, ticks
from tests.unit.alerts.receivers import Hook, serve_hook

pytestmark = pytest.mark.timeout(1800)

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
DAYS = 3  # the second one makes a reward model, which predicts the third


def environ_of(home: Path, **more: str) -> dict[str, str]:
    given = {"RLHF_ANNOTATORS": "simulated", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return os.environ | Settings(home=home).environ | given | more


def rlhf(environ: Mapping[str, str], *words: str) -> None:
    """A command as a person types it."""
    ended = subprocess.run(
        [str(BINARIES / "rlhf"), *words],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory, small_policy: Path) -> Path:
    """What `rlhf demo` leaves, with a policy that is trained in seconds."""

    def make(home: Path) -> None:
        environ = environ_of(home, RLHF_POLICY=str(small_policy))
        rlhf(environ, "demo", "--days", str(DAYS))

    made = build_once(tmp_path_factory, "demo", make)
    home = tmp_path_factory.mktemp("incident") / "home"
    shutil.copytree(made, home, ignore=shutil.ignore_patterns("dagster", "runs", "*.lock"))
    (home / "dagster").mkdir()
    shutil.copy(made / "dagster" / "dagster.yaml", home / "dagster")
    return home


@dataclass
class Incident:
    """A demo whose votes were flipped while its daemon ran, and what the receiver got."""

    store: Store
    instance: dg.DagsterInstance
    hook: Hook
    opened: Alert
    model: str  # name of the reward model

    def received(self) -> list[dict[str, Any]]:
        """The payloads, each with a signature that the receiver verifies."""
        return [
            Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
            for headers, body in self.hook.received
        ]

    def of_drift(self) -> list[Mapping[str, Any]]:
        return [each for each in self.received() if each["data"]["rule"] == "drift"]

    def decisions(self) -> list[TriggerDecision]:
        """Those that answer a change."""
        return [each for each in self.store.decisions.all() if each.remedy is not None]

    def champion(self) -> Promotion:
        champion = self.store.promotions.champion(self.model)
        assert champion is not None
        return champion


def drift_alerts(store: Store) -> list[Alert]:
    return store.alerts.page(rule="drift", states=["open", "acknowledged", "resolved"])


@pytest.fixture(scope="module")
def incident(
    demo_home: Path, small_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Incident]:
    settings = Settings(home=demo_home)
    with (
        Store.of_home(settings) as store,
        dg.DagsterInstance.from_config(str(demo_home / "dagster")) as instance,
        serve_hook(Hook()) as hook,
    ):
        team = {"channel": "webhook", "url": hook.url, "secret": SECRET}
        environ = environ_of(
            demo_home,
            RLHF_POLICY=str(small_policy),
            RLHF_ALERT_TARGETS=json.dumps({"team": team}),
            RLHF_ALERT_ALLOW_PRIVATE="true",
            RLHF_SENSOR_SECONDS="2",
            RLHF_SLOW_SENSOR_SECONDS="2",
            RLHF_QUIET_MINUTES="0.02",
        )
        last = max(date.fromisoformat(day) for day in store.predictions.days())
        day = (last + timedelta(days=1)).isoformat()
        rlhf(environ, "run", "collection", "--day", day)
        with daemons(environ, tmp_path_factory.mktemp("daemon")):
            eventually(lambda: ticks(instance, "alerts"), seconds=120, what="a first tick")
            store.votes.cast_many(flip_votes(store, day, n=150))
            opened = eventually(
                lambda: drift_alerts(store), seconds=240, what="an alert about the change"
            )[0]
            yield Incident(store, instance, hook, opened, settings.reward_model)


def test_the_receiver_gets_one_signed_message_with_cause_and_link(incident: Incident) -> None:
    assert incident.opened.severity == "critical"
    message = eventually(incident.of_drift, seconds=60, what="a message to the webhook")[0]
    assert message["type"] == "alert.opened"
    data = message["data"]
    assert data["title"].startswith("Preferences drifted: ")
    assert data["cause"] == "taste"
    assert data["evidence"]["shares"]["taste"] > 0.5
    assert data["evidence"]["detectors"]
    assert data["evidence"]["n_events"] >= 1
    assert data["subject"].startswith("decision ")
    assert data["link"].startswith("http://127.0.0.1:3000/")
    eventually(ticked_again(incident.instance, "alerts", 3), seconds=60, what="three more ticks")
    kinds = [each["type"] for each in incident.of_drift()]
    assert kinds in (["alert.opened"], ["alert.opened", "alert.resolved"])


def test_the_alert_ends_with_the_retraining(incident: Incident) -> None:
    before = incident.opened.opened_at
    eventually(
        lambda: drift_alerts(incident.store)[-1].state == "resolved",
        seconds=480,
        what="the end of the alert",
        every=1,
    )
    champion = incident.champion()
    assert champion.promoted_at > before
    (alert,) = drift_alerts(incident.store)
    assert f"{champion.label} is the champion now" in alert.resolution
    assert [each.remedy for each in incident.decisions()] == ["retrain"]
    kinds = eventually(
        lambda: found if len(found := [m["type"] for m in incident.of_drift()]) > 1 else [],
        seconds=60,
        what="a second message",
    )
    assert kinds == ["alert.opened", "alert.resolved"]


def test_no_tick_of_the_sensor_failed(incident: Incident) -> None:
    failed = [
        tick.error.message
        for tick in ticks(incident.instance, "alerts")
        if tick.status.value == "FAILURE"
    ]
    assert failed == []
    measured = incident.store.metric_points.latest(["sensors.lag_seconds"])
    assert {"alerts", "votes", "retraining"} <= {point.labels["sensor"] for point in measured}
