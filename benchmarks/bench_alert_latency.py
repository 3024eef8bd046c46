"""Seconds from the last vote of a change to the row of its alert, with a real daemon.

    python benchmarks/bench_alert_latency.py [--quiet 20] [--busy 5] [--days 4] [--home FOLDER]
        [--minutes 60]

Makes a demo home, or takes a copy of one that has a champion reward model. For each change a new
copy collects one more day, starts the daemon with the default settings, waits for its first tick
and casts votes that contradict the champion, all at once. During busy changes twice as many
processes as there are cores compute in vain. Limits for 95 % of the changes: 120 s on a quiet
machine, 300 s on a busy one. A machine that others load is busy, and the table shows its load.
After `--minutes` no further change begins.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.flipped_votes import flip_votes  # noqa: E402
from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402
from rlhf_pipeline.monitoring import Alert  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402

T = TypeVar("T")
BINARIES = Path(sys.executable).parent
LIMIT_S, BUSY_LIMIT_S = 120.0, 300.0
CORES = os.cpu_count() or 1
SECONDS_TO_START = 400  # more than the limit on a busy machine
N_VOTES = 150  # a multiple of RLHF_VOTES_PER_REQUEST: the last one starts the day's feedback


@dataclass
class Measured:
    """The changes of one kind: seconds of each, and the load before it, or while it is busy."""

    kind: str
    seconds: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return float(np.quantile(self.seconds, 0.95, method="higher"))

    @property
    def load(self) -> float:
        return float(np.median(self.loads))

    @property
    def machine(self) -> str:
        return "busy with other work" if self.kind == "quiet" and self.load > CORES else self.kind

    @property
    def limit_s(self) -> float:
        return LIMIT_S if self.machine == "quiet" else BUSY_LIMIT_S

    def row(self) -> tuple[object, ...]:
        figures = (np.median(self.seconds), self.p95, max(self.seconds), self.limit_s)
        return (
            self.machine,
            len(self.seconds),
            *(f"{value:.0f} s" for value in figures),
            f"{self.load:.1f} on {CORES} cores",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", type=int, default=20, help="changes on a quiet machine")
    parser.add_argument("--busy", type=int, default=5, help="changes on a busy one")
    parser.add_argument("--days", type=int, default=4, help="days of the demo home")
    parser.add_argument("--home", type=Path, help="home to copy; without it a demo home is made")
    parser.add_argument("--minutes", type=float, default=60, help="no change begins after them")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.minutes * 60
    quiet, busy = Measured("quiet"), Measured("busy")
    with tempfile.TemporaryDirectory() as folder:
        home = arguments.home or Path(folder) / "demo"
        if arguments.home is None:
            _rlhf(home, "demo", "--days", str(arguments.days))
        for measured in [quiet] * arguments.quiet + [busy] * arguments.busy:
            if time.monotonic() > until:
                break
            copy = _copy_home(home, Path(folder) / "change")
            load = os.getloadavg()[0]
            with _burn(2 * CORES if measured is busy else 0):
                seconds = measure_change(copy, Path(folder))
                load = os.getloadavg()[0] if measured is busy else load  # of the daemon too
            measured.seconds.append(seconds)
            measured.loads.append(load)
            print(f"{measured.kind} change, load {load:.1f}: {seconds:.0f} s", flush=True)
            shutil.rmtree(copy, ignore_errors=True)
    measured_kinds = [each for each in (quiet, busy) if each.seconds]
    print_table(
        "last vote of a change → alert, default settings",
        ("machine", "changes", "median", "p95", "slowest", "limit of p95", "load"),
        [each.row() for each in measured_kinds],
    )
    limits = Limits()
    for each in measured_kinds:
        limits.check(
            each.p95 <= each.limit_s,
            f"p95 {each.p95:.0f} s (at most {each.limit_s:.0f} s on a machine that is "
            f"{each.machine})",
        )
    return limits.print_summary()


def measure_change(home: Path, folder: Path) -> float:
    """Seconds from the last flipped vote to the alert, by the times that the store recorded."""
    with Store.of_home(Settings(home=home)) as store:
        last = max(date.fromisoformat(day) for day in store.predictions.days())
        day = (last + timedelta(days=1)).isoformat()
        _rlhf(home, "run", "collection", "--day", day)
        with _daemon(home, folder / "daemon.log"):
            # it has ticked once the daemon has loaded the code
            _wait(lambda: store.metric_points.latest(["sensors.lag_seconds"]), "a tick")
            store.votes.cast_many(flip_votes(store, day, N_VOTES))
            voted_at = store.votes.last_received_at()
            assert voted_at is not None
            alert = _wait(lambda: _find_alert(store), "an alert")
            return (alert.opened_at - voted_at).total_seconds()


def _find_alert(store: Store) -> Alert | None:
    return next(iter(store.alerts.page(rule="drift")), None)


def _wait(look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.5)
    raise SystemExit(f"Not within {SECONDS_TO_START} s: {what}. The log of the daemon shows why.")


def _copy_home(home: Path, copy: Path) -> Path:
    """A copy without Dagster's history, which names the first home."""
    ignored = shutil.ignore_patterns("dagster", "runs", "*.lock")
    shutil.copytree(home, copy, ignore=ignored)
    (copy / "dagster").mkdir()
    shutil.copy(home / "dagster" / "dagster.yaml", copy / "dagster")
    return copy


def _environ(home: Path) -> dict[str, str]:
    given = os.environ | Settings(home=home).environ
    return given | {"RLHF_ANNOTATORS": "simulated", "PYTHONPATH": str(ROOT)}


def _rlhf(home: Path, *words: str) -> None:
    command = [str(BINARIES / "rlhf"), *words]
    subprocess.run(command, env=_environ(home), check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _burn(n: int) -> Iterator[None]:
    """Keep `n` processes computing."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _daemon(home: Path, log: Path) -> Iterator[None]:
    # not in the checkout: Dagster lets a .env of the working directory win over the environment
    command = [str(BINARIES / "dagster-daemon"), "run", "-w", str(ROOT / "workspace.yaml")]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=_environ(home),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
