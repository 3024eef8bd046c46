"""The wheel beside the environment's packages: one command runs the loop, outside a checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from tests.processes.daemon_home import ROOT, Server, eventually
from tests.serving import find_free_port

pytestmark = pytest.mark.timeout(2400)


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


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    return inherited | {"HOME": str(tmp_path)}


def test_the_demo_runs_outside_a_checkout(
    commands: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    # What the policy writes is of no interest here, and slow.
    (tmp_path / "rlhf.yaml").write_text("loop: {completions: {max_new_tokens: 4}}")
    ran = subprocess.run(
        [commands / "rlhf", "demo", "--days", "1"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "day 1" in ran.stdout
    assert (tmp_path / "var" / "store.db").exists()


def test_dev_serves_a_new_project_with_its_own_asset(
    commands: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    project = tmp_path / "mine"
    ran = subprocess.run([commands / "rlhf", "new", project], env=environ, check=False)
    assert ran.returncode == 0
    for name in ("assets", "jobs"):  # the application's folders have other import names
        (project / f"{name}.py").write_text("raise AssertionError('not to be imported')\n")
    web, dagster, mlflow = (find_free_port() for _ in range(3))
    links = {
        "RLHF_DAGSTER_UI": f"http://127.0.0.1:{dagster}",
        "RLHF_MLFLOW_UI": f"http://127.0.0.1:{mlflow}",
    }
    command = [str(commands / "rlhf"), "dev", "--web-port", str(web)]
    server = Server.start(command, environ | links, project / "dev.log")
    try:
        eventually(
            lambda: "/login?token=rlhf_" in server.text or server.process.poll(),
            what="addresses",
        )
        assert server.process.poll() is None, server.text
        body = json.dumps({"query": "{assetNodes {assetKey {path}}}"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{dagster}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            nodes = json.load(answer)["data"]["assetNodes"]
        assert {"choices", "votes", "gate"} <= {node["assetKey"]["path"][-1] for node in nodes}
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/healthz") as answer:
            assert json.load(answer) == {"status": "ok"}
    finally:
        server.end()
