"""A project whose votes were flipped, the daemons that run on it, and who receives its alerts."""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from standardwebhooks import Webhook

from rlhf_pipeline.core.alert_targets import parse_targets
from tests.processes.daemon_home import Server, daemons, eventually, runs_of
from tests.processes.network_watch import watch_network
from tests.unit.watch.alerts.receivers import Hook

T = TypeVar("T")

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"


@dataclass
class Household:
    """A project with a champion reward model, and the daemons that run on it now."""

    project: Any
    folder: Path
    hook: Hook
    running: list[Server] = field(default_factory=list)
    started_at: float = 0.0  # of those that run, in seconds since 1970
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.project.instance

    def start(self, n: int = 1, **settings: Any) -> None:
        team = {"channel": "webhook", "url": self.hook.url, "secret": SECRET, "allow_private": True}
        targets = {"alert_targets": parse_targets({"team": team})}
        changed = type(self.project)(
            self.project.settings.model_copy(update=targets | settings), self.instance
        )
        self.started_at = time.time()
        self.running = self.stack.enter_context(
            daemons(watch_network(changed.environ, self.folder), self.folder, n)
        )

    def end(self) -> None:
        self.stack.close()
        self.running = []

    def eventually(self, check: Callable[[], T], *, what: str, every: float = 0.5) -> T:
        """As `daemon_home.eventually`, with the runs and the daemons' last lines in the error."""
        try:
            return eventually(check, what=what, every=every)
        except AssertionError as error:
            runs = [
                f"{run.job_name} {run.run_id} {run.status.value}"
                for run in self.instance.get_runs()
            ]
            output = [line for daemon in self.running for line in daemon.text.splitlines()]
            lines = [line for line in output if "SensorDaemon - " not in line][-60:]
            raise AssertionError("\n".join([str(error), *runs, *lines])) from None

    def launch(self, n: int) -> None:
        """How many runs the daemons that start next launch at once; more wait in the queue."""
        file = self.project.settings.home / "dagster" / "dagster.yaml"
        text, n_replaced = re.subn(
            r"max_concurrent_runs: \d+",
            f"max_concurrent_runs: {n}",
            file.read_text(encoding="utf-8"),
        )
        assert n_replaced == 1
        file.write_text(text, encoding="utf-8")

    def retrainings(self) -> list[dg.DagsterRun]:
        return runs_of(self.instance, "retraining")

    def second_attempt(self) -> dg.DagsterRun | None:
        runs = self.retrainings()[1:]
        return runs[0] if runs and runs[0].status == dg.DagsterRunStatus.STARTED else None

    def messages_of_drift(self) -> list[Mapping[str, Any]]:
        """The payloads, each with its signature verified."""
        received = [read_signed(headers, body) for headers, body in self.hook.received]
        return [each for each in received if each["data"]["rule"] == "drift"]


def read_signed(headers: Mapping[str, str], body: bytes | str) -> dict[str, Any]:
    """The payload of a message. `Webhook.verify` refuses one that was sent five minutes ago, and on
    a slow machine the test looks later.
    """
    named = {name.lower(): value for name, value in headers.items()}
    text = body.decode() if isinstance(body, bytes) else body
    sent_at = datetime.fromtimestamp(int(named["webhook-timestamp"]), tz=UTC)
    signature = Webhook(SECRET).sign(named["webhook-id"], sent_at, text)
    assert signature in named["webhook-signature"].split()
    content: dict[str, Any] = json.loads(text)
    return content
