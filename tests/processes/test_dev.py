"""`rlhf dev` as a person uses it: all servers answer, sensors run, a range backfills as one run, a
failed run goes on, Ctrl-C ends all.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.processes.daemon_home import BINARIES, Server, eventually
from tests.serving import find_free_port

pytestmark = pytest.mark.timeout(2400)

LOCATION = {"repositoryLocationName": "rlhf_pipeline", "repositoryName": "__repository__"}


@dataclass
class Dev:
    project: Any
    server: Server
    dagster: str
    mlflow: str
    web: str

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer, as the web page asks for it."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.dagster}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            payload = json.load(answer)
        assert "errors" not in payload, payload
        return payload["data"]

    def ended(self, run_id: str) -> str | None:
        run = self.project.instance.get_run_by_id(run_id)
        return run.status.value if run.is_finished else None


@pytest.fixture(scope="module")
def dev(
    make_project: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dev]:
    # Sensors look as seldom as they do for a user: no test here waits for one.
    project = make_project(persistent=True, completion_backend="template")
    ports = {name: find_free_port() for name in ("dagster", "mlflow", "web")}
    command = [str(BINARIES / "rlhf"), "dev", "--web-port", str(ports["web"])]
    links = {
        f"RLHF_{name.upper()}_UI": f"http://127.0.0.1:{ports[name]}"
        for name in ("dagster", "mlflow")
    }
    log = tmp_path_factory.mktemp("dev") / "dev.log"
    server = Server.start(command, project.environ | links, log)
    started = Dev(project, server, *(f"http://127.0.0.1:{port}" for port in ports.values()))
    try:
        eventually(
            lambda: "/login?token=rlhf_" in server.text or server.process.poll(),
            what="addresses",
        )
        assert server.process.poll() is None, server.text
        yield started
    finally:
        server.end()


def test_printed_addresses_are_served(dev: Dev) -> None:
    for address in (dev.web, dev.dagster, dev.mlflow):
        assert f"  {address}\n" in dev.server.text
    with urllib.request.urlopen(f"{dev.web}/api/v1/healthz", timeout=60) as answer:
        assert json.load(answer) == {"status": "ok"}
    last = dev.server.text.rstrip().splitlines()[-1]
    assert f"{dev.web}/login?token=rlhf_" in last, dev.server.text
    assert dev.mlflow in dev.server.text
    with urllib.request.urlopen(f"{dev.dagster}/server_info", timeout=60) as answer:
        assert json.load(answer)["dagster_version"].startswith("1.13")
    with urllib.request.urlopen(f"{dev.mlflow}/health", timeout=60) as answer:
        assert answer.read() == b"OK"
    search = urllib.request.Request(
        f"{dev.mlflow}/api/2.0/mlflow/registered-models/search",
        headers={"Content-Type": "application/json"},
        method="GET",
    )
    with urllib.request.urlopen(search, timeout=120) as answer:
        assert [model["name"] for model in json.load(answer)["registered_models"]] == [
            "demo.policy"
        ]


def test_all_servers_listen_on_loopback_only(dev: Dev) -> None:
    """The web servers of Dagster and MLflow ask nobody for a login: whoever reaches them may start
    runs and delete models.
    """
    connections = []
    for process in dev.server.family():
        with suppress(psutil.NoSuchProcess):  # a run that ended meanwhile
            connections += [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    ports = {int(address.rpartition(":")[2]) for address in (dev.web, dev.dagster, dev.mlflow)}
    assert ports <= {c.laddr.port for c in connections}
    assert {c.laddr.ip for c in connections} == {"127.0.0.1"}, connections


def test_sensors_and_schedules_run_by_default_on_a_fresh_home(dev: Dev) -> None:
    sensors = (
        "query($s: RepositorySelector!) {sensorsOrError(repositorySelector: $s) {... on "
        "Sensors {results {name sensorState {status}}}}}"
    )
    schedules = (
        sensors.replace("sensorsOrError", "schedulesOrError")
        .replace("on Sensors", "on Schedules")
        .replace("sensorState", "scheduleState")
    )
    status_of = {
        s["name"]: s["sensorState"]["status"]
        for s in dev.ask(sensors, s=LOCATION)["sensorsOrError"]["results"]
    }
    assert status_of == dict.fromkeys(
        (
            "votes",
            "replay",
            "learning",
            "retraining",
            "gate",
            "served_check",
            "paused_runs",
            "alerts",
        ),
        "RUNNING",
    )
    timed = {
        s["name"]: s["scheduleState"]["status"]
        for s in dev.ask(schedules, s=LOCATION)["schedulesOrError"]["results"]
    }
    assert set(timed.values()) == {"RUNNING"}
    assert len(timed) == 4


def test_ctrl_c_ends_everything_it_started(dev: Dev) -> None:
    family = dev.server.family()
    assert len(family) >= 6, "rlhf, web app, dagster dev, web server, daemon, code server, mlflow"
    family[0].send_signal(2)
    assert dev.server.process.wait(120) == 0
    assert [process for process in family if working(process)] == []
    assert "stopping" in dev.server.text


def working(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
