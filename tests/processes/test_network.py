"""With the network cut, the demo runs through: no process tries to reach outside, and no file is
written outside the home.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_pipeline.config import TELEMETRY_OFF

ROOT = Path(__file__).resolve().parents[2]
# Loaded by every Python process that finds it on PYTHONPATH: what leads outside is written down and
# refused.
WATCH = """
import ipaddress, os, socket, sys

LOG = os.environ["NETWORK_LOG"]


def is_inside(host):
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        # Only addresses of the internet are (host, port, …); a Unix socket has a path, netlink has numbers.
        address = arguments[1]
        if not isinstance(address, tuple) or not isinstance(address[0], (str, bytes)):
            return
        host = address[0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    else:
        return
    if not is_inside(host):
        with open(LOG, "a") as log:
            log.write(f"{event} {host} by {sys.argv[:3]}\\n")
        raise PermissionError(f"{event} to {host}: the network is cut")


sys.addaudithook(watch)
"""
ATTEMPTS = """
import socket
for attempt in (
    lambda: socket.socket().connect(("192.0.2.1", 80)),
    lambda: socket.getaddrinfo("example.org", 443),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.2", 53)),
):
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit("not refused")
socket.getaddrinfo("127.0.0.1", 80)
"""
# What the sensor does after a change of taste: a reward model, its calibration, a candidate by DPO,
# the gate.
RETRAIN = """
import os
import dagster as dg
from definitions import definitions_for
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import GateDecision

settings = Settings.read()
os.environ["DAGSTER_HOME"] = str(settings.home / "dagster")
quick = {
    "calibration": {"min_pairs": 10},
    "retraining_set": {"min_pairs": 40, "max_pairs": 48},
    "candidate_model": {"epochs": 1, "min_pairs": 40},
    "evaluation": {"max_new_tokens": 8},
}
with dg.DagsterInstance.get() as instance:
    definitions_for(settings).resolve_job_def("retraining").execute_in_process(
        instance=instance, run_config={"ops": {stage: {"config": config} for stage, config in quick.items()}}
    )
print("judged:", Artefacts(settings.frames).read_record("gate", GateDecision).candidate)
"""


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that are watched and kept inside."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    (tmp_path / "network.log").touch()
    path = os.pathsep.join([str(tmp_path / "watch"), str(ROOT)])
    return os.environ | {
        "PYTHONPATH": path,
        "NETWORK_LOG": str(tmp_path / "network.log"),
        "RLHF_HOME": str(tmp_path / "home"),
    }


def cut() -> list[str]:
    """A command prefix that takes the network away for real, where the system lets us."""
    unshare = shutil.which("unshare")
    possible = (
        unshare
        and subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode
        == 0
    )
    return [str(unshare), "-rn"] if possible else []


def run(command: list[str], environ: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [*cut(), *command],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_watch_sees_and_refuses_what_a_grandchild_tries(watched: dict[str, str]) -> None:
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ATTEMPTS!r}], check=True)"
    )
    run([sys.executable, "-c", child], watched)
    seen = Path(watched["NETWORK_LOG"]).read_text().splitlines()
    assert [line.split()[:2] for line in seen] == [
        ["socket.connect", "192.0.2.1"],
        ["socket.getaddrinfo", "example.org"],
        ["socket.sendto", "192.0.2.2"],
    ]


def files_below(folder: Path) -> list[str]:
    """Without matplotlib's list of fonts, which all programs of a user share."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and path.parent.name != "matplotlib"
    )
    return sorted(str(path.relative_to(folder)) for path in files)


def test_the_demo_and_a_retraining_stay_inside_the_host_and_the_home(
    watched: dict[str, str], small_policy: Path, tmp_path: Path
) -> None:
    # Without what tells libraries not to report home: the project must see to it itself.
    told = {
        k: v
        for k, v in watched.items()
        if k not in {*TELEMETRY_OFF, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    }
    outside = {name: tmp_path / name for name in ("HOME", "TMPDIR", "cwd")}
    for folder in outside.values():
        folder.mkdir()
    environ = told | {"RLHF_POLICY": str(small_policy), "RLHF_ANNOTATORS": "simulated"}
    environ |= {"HOME": str(outside["HOME"]), "TMPDIR": str(outside["TMPDIR"])}
    in_checkout = {path.name for path in ROOT.iterdir()}

    rlhf = str(Path(sys.executable).parent / "rlhf")
    said = run([rlhf, "demo", "--days", "1"], environ, outside["cwd"])
    assert "1 days in" in said
    assert "judged: demo.policy@2" in run([sys.executable, "-c", RETRAIN], environ, outside["cwd"])
    run([rlhf, "prompts", "generate", "--num-prompts", "2"], environ, outside["cwd"])
    run([rlhf, "export", "completions"], environ, outside["cwd"])

    assert Path(environ["NETWORK_LOG"]).read_text() == ""
    assert {name: files_below(folder) for name, folder in outside.items()} == {
        "HOME": [],
        "TMPDIR": [],
        "cwd": [],
    }
    left = {"mlruns", "mlartifacts", "gx", "outputs"}
    assert {path.name for path in ROOT.iterdir()} & left == in_checkout & left
