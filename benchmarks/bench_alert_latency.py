"""Seconds from the last vote of a change to the row of its alert, with a real daemon.

    python benchmarks/bench_alert_latency.py [--changes 5] [--days 4] [--home FOLDER]

Makes a demo home, or takes a copy of one that has a champion reward model. For each change a new
copy collects one more day, starts the daemon with the default settings, waits for its first tick
and casts votes that contradict the champion, all at once. Limit: 120 s for 95 % of the changes; it
holds on an otherwise idle machine. The limit on a busy one is five minutes.
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
SECONDS_TO_START = 240
N_VOTES = 150  # a multiple of RLHF_VOTES_PER_REQUEST: the last one starts the day's feedback


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=5)
    parser.add_argument("--days", type=int, default=4, help="days of the demo home")
    parser.add_argument("--home", type=Path, help="home to copy; without it a demo home is made")
    arguments = parser.parse_args()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        home = arguments.home or Path(folder) / "demo"
        if arguments.home is None:
            _rlhf(home, "demo", "--days", str(arguments.days))
        for n in range(arguments.changes):
            copy = _copy_home(home, Path(folder) / f"change-{n}")
            seconds.append(measure_change(copy, Path(folder)))
            print(f"change {n + 1}: {seconds[-1]:.0f} s", flush=True)
            shutil.rmtree(copy, ignore_errors=True)
    p95 = float(np.quantile(seconds, 0.95, method="higher"))
    print_table(
        f"last vote of a change → alert, {len(seconds)} changes, default settings",
        ("median", "p95", "slowest", "load of the machine"),
        [
            (
                f"{np.median(seconds):.0f} s",
                f"{p95:.0f} s",
                f"{max(seconds):.0f} s",
                f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            )
        ],
    )
    limits = Limits()
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    limit = BUSY_LIMIT_S if is_busy else LIMIT_S
    words = "busy" if is_busy else "quiet"
    limits.check(p95 <= limit, f"p95 {p95:.0f} s (at most {limit:.0f} s on a {words} machine)")
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
