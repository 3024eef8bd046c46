"""Measures `rlhf dev` at rest: CPU seconds a minute and memory, summed over all its processes.

    python benchmarks/bench_at_rest.py [--seconds 120] [--warm-up 60]

Starts `rlhf dev` on a fresh home with a small policy, waits until every server answers and then
`--warm-up` seconds, and measures for `--seconds`. CPU is user and system time of the processes
themselves, so other work on the machine does not count. Limits: 3 s of CPU a minute, and 1 GB of
memory as PSS, in which a page that several processes share counts once; the sum of RSS counts it in
each of them and stands beside it without a limit. Where a system has no PSS (macOS), RSS is held to
the limit.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()

import psutil  # noqa: E402

from benchmarks.measurement import Limits, LimitTable  # noqa: E402
from benchmarks.web_server import find_free_port, server_environment  # noqa: E402

CPU_S_PER_MINUTE, MEMORY_MB = 3.0, 1000
SECONDS_TO_START = 180


@dataclass
class Usage:
    """One process at the end of the measurement."""

    command: str
    cpu_s: float
    pss_mb: float | None
    rss_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="how long to measure")
    parser.add_argument(
        "--warm-up", type=float, default=60, help="how long to wait after every server answers"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="at-rest-") as folder:
        home = Path(folder) / "home"
        _make_home(home, Path(folder) / "policy")
        with (Path(folder) / "dev.log").open("w+b") as log:
            server = _start(home, log.name)
            try:
                _wait(server, Path(log.name))
                time.sleep(arguments.warm_up)
                usages = measure(psutil.Process(server.pid), arguments.seconds)
            finally:
                _stop(server)
    return report(usages, arguments.seconds).print_summary()


def measure(root: psutil.Process, seconds: float) -> list[Usage]:
    """What the process and all its descendants use; those that end meanwhile are counted until then
    as far as their parent collects them.
    """
    before = {process.pid: _cpu(process) for process in _family(root)}
    time.sleep(seconds)
    usages = []
    for process in _family(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()
            pss = getattr(memory, "pss", None)
            command = " ".join(process.cmdline()).replace(
                str(Path(sys.executable).parent) + "/", ""
            )
            usages.append(
                Usage(
                    command,
                    _cpu(process) - before.get(process.pid, 0.0),
                    pss and pss / 1e6,
                    memory.rss / 1e6,
                )
            )
    return usages


def report(usages: list[Usage], seconds: float) -> Limits:
    """Print one table, and judge the sums."""
    table = LimitTable()
    per_minute = 60 / seconds
    for usage in usages:
        pss = "" if usage.pss_mb is None else f", {usage.pss_mb:.0f} MB PSS"
        table.print_row(
            usage.command[:70],
            "CPU a minute, memory",
            f"{usage.cpu_s * per_minute:.2f} s{pss}, {usage.rss_mb:.0f} MB RSS",
        )
    cpu, rss = sum(u.cpu_s for u in usages) * per_minute, sum(u.rss_mb for u in usages)
    n = f"{len(usages)} processes"
    table.print_row(
        n,
        f"CPU a minute, over {seconds:g} s",
        f"{cpu:.2f} s",
        f"{CPU_S_PER_MINUTE:g} s",
        passed=cpu <= CPU_S_PER_MINUTE,
    )
    all_pss = [u.pss_mb for u in usages if u.pss_mb is not None]
    if len(all_pss) == len(usages):
        pss = sum(all_pss)
        table.print_row(
            n, "memory, PSS", f"{pss:.0f} MB", f"{MEMORY_MB} MB", passed=pss <= MEMORY_MB
        )
        table.print_row(n, "memory, RSS", f"{rss:.0f} MB")
    else:
        table.print_row(
            n, "memory, RSS", f"{rss:.0f} MB", f"{MEMORY_MB} MB", passed=rss <= MEMORY_MB
        )
    return table.limits


def _make_home(home: Path, policy: Path) -> None:
    # seconds, which tests of the limits need not pay
    from rlhf_pipeline.cli.context import Workspace
    from rlhf_pipeline.cli.init import initialise
    from rlhf_pipeline.policy import PretrainingParams, pretrain
    from rlhf_pipeline.policy.corpus import CorpusParams

    # No prompt is completed here, but a home needs a policy.
    corpus = CorpusParams(n_texts=500)
    small = PretrainingParams(
        corpus=corpus,
        n_vocabulary=384,
        hidden=32,
        layers=1,
        intermediate=64,
        steps=20,
        batch_size=8,
    )
    pretrain(policy, small)
    workspace = Workspace(Settings(home=home, project="bench", policy=str(policy)))
    initialise(workspace)
    workspace.store.close()


def _start(home: Path, log: str) -> "subprocess.Popen[bytes]":
    environ = {
        name: value
        for name, value in server_environment("", home).items()
        if name != "RLHF_DATABASE_URL"
    }
    ports = [
        part
        for name in ("dagster", "mlflow", "web")
        for part in (f"--{name}-port", str(find_free_port()))
    ]
    command = [str(Path(sys.executable).with_name("rlhf")), "dev", *ports]
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, cwd=home, env=environ, stdout=output, stderr=output, start_new_session=True
        )


def _wait(server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while "Ctrl-C ends all" not in log.read_text(errors="replace"):
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"`rlhf dev` did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.5)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    family = _family(psutil.Process(server.pid)) if server.poll() is None else []
    server.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(30)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def _family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _cpu(process: psutil.Process) -> float:
    """User and system time of the process and of its children that ended: runs and short helpers
    are its work too.
    """
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


if __name__ == "__main__":
    sys.exit(main())
