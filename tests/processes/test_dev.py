"""The wheel beside the environment's packages, outside a checkout: the first notebook runs, and
`rlhf dev` on a new project serves what a person uses; Ctrl-C ends all.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.daemon_home import ROOT, Server, eventually
from tests.serving import find_free_port

pytestmark = pytest.mark.timeout(2400)

LOCATION = {"repositoryLocationName": "rlhf_pipeline", "repositoryName": "__repository__"}
FIRST_LOOP = ROOT / "docs" / "notebooks" / "1-first-loop.ipynb"


@dataclass
class Dev:
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


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, because setuptools leaves its build beside what it builds.
    left_out = shutil.ignore_patterns(".*", "var", "tests", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, folder / "source"], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    packages = next((folder / "env").glob("lib/python*/site-packages"))
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(packages), wheel], check=True)
    (packages / "environment.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    script = folder / "env" / "bin" / "rlhf"
    script.write_text(
        f"#!{script.with_name('python')}\nfrom rlhf_pipeline.cli import main\nmain()\n"
    )
    script.chmod(0o755)
    for name in ("dagster", "dagster-daemon", "dagster-webserver", "mlflow"):
        installed = Path(sys.executable).with_name(name).read_text()
        script.with_name(name).write_text(f"#!{script.with_name('python')}\n" + installed)
        script.with_name(name).chmod(0o755)
    return script.parent


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    return inherited | {"HOME": str(tmp_path_factory.mktemp("user"))}


def test_the_first_notebook_runs_outside_a_checkout(
    commands: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """Its code, by the Python of the wheel's environment."""
    # How much the policy writes, and on how many prompts, is of no interest here, and slow.
    settings = "loop: {completions: {max_new_tokens: 4}, prompts: {n: 20}}"
    (tmp_path / "rlhf.yaml").write_text(settings)
    cells = json.loads(FIRST_LOOP.read_bytes())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    ran = subprocess.run(
        [commands / "python", "-c", code],
        cwd=tmp_path,
        env=environ | {"NOTEBOOK_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "day 1" in ran.stdout
    assert (tmp_path / "home" / "store.db").exists()


@pytest.fixture(scope="module")
def dev(
    commands: Path, environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dev]:
    # Sensors look as seldom as they do for a user: no test here waits for one.
    project = tmp_path_factory.mktemp("new") / "mine"
    subprocess.run([commands / "rlhf", "new", project], env=environ, check=True)
    for name in ("assets", "jobs"):  # the application's folders have other import names
        (project / f"{name}.py").write_text("raise AssertionError('not to be imported')\n")
    ports = {name: find_free_port() for name in ("dagster", "mlflow", "web")}
    command = [str(commands / "rlhf"), "dev", "--web-port", str(ports["web"])]
    links = {
        f"RLHF_{name.upper()}_UI": f"http://127.0.0.1:{ports[name]}"
        for name in ("dagster", "mlflow")
    }
    server = Server.start(command, environ | links, project / "dev.log")
    started = Dev(server, *(f"http://127.0.0.1:{port}" for port in ports.values()))
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
    search = f"{dev.mlflow}/api/2.0/mlflow/experiments/search?max_results=9"
    with urllib.request.urlopen(search, timeout=60) as answer:
        assert "mine" in {each["name"] for each in json.load(answer)["experiments"]}


def test_asset_of_the_project_stands_beside_the_others(dev: Dev) -> None:
    nodes = dev.ask("{assetNodes {assetKey {path}}}")["assetNodes"]
    assert {"choices", "votes", "gate"} <= {node["assetKey"]["path"][-1] for node in nodes}


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
    names = ("close_yesterday", "collection_morning", "housekeeping_nightly")
    assert timed == dict.fromkeys(names, "RUNNING")


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
