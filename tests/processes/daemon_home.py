"""A real `dagster-daemon` on a test's project: started, watched, killed. Knows processes and
Dagster's own records of them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import psutil

from rlhf_pipeline.improve.loop_settings import ScheduleParams

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(sys.executable).parent
T = TypeVar("T")


def eventually(
    check: Callable[[], T], *, what: str, seconds: float = 1200, every: float = 0.5
) -> T:
    """The first true answer of `check`; fails the test after `seconds`, in which a crowded machine
    goes through a run of six processes.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(every)
    raise AssertionError(f"Not within {seconds:g} s: {what}")


@dataclass
class Server:
    """One process with all its children, its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: Sequence[str], environ: Mapping[str, str], log: Path) -> "Server":
        with log.open("ab") as output:
            return cls(
                subprocess.Popen(
                    command,
                    cwd=log.parent,
                    env=dict(environ),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                ),
                log,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def family(self) -> list[psutil.Process]:
        """The process and every descendant that is alive: a run that has ended may stand in the
        list until its launcher looks.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            this = psutil.Process(self.process.pid)
            return [
                process for process in (this, *this.children(recursive=True)) if _is_alive(process)
            ]
        return []

    def kill(self) -> None:
        """As a power cut does: everything at once, without a word."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def end(self, seconds: float = 20) -> None:
        """As a person does, then whatever is left."""
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def daemons(environ: Mapping[str, str], folder: Path, n: int = 1) -> Iterator[list[Server]]:
    """`n` daemons at once on one home; ended at the end, whatever happens."""
    # Not in the checkout: Dagster lets a .env of the working directory, as `make` writes one, win
    # over the environment.
    command = [str(BINARIES / "dagster-daemon"), "run", "-w", str(ROOT / "workspace.yaml")]
    started: list[Server] = []
    try:
        for i in range(n):
            started.append(
                Server.start(command, environ, folder / f"daemon-{time.time_ns()}-{i}.log")
            )
            # half of what Dagster's queue waits between two looks: it has no lock, and two launch a
            # run twice
            time.sleep(2.5 if i < n - 1 else 0)
        yield started
    finally:
        for daemon in started:
            daemon.end()


def distant_schedules() -> dict[str, dict[str, str]]:
    """Loop settings of which no daily schedule is due while a test runs, whatever the time."""
    at = datetime.now(UTC) + timedelta(hours=12)
    return {"schedules": dict.fromkeys(ScheduleParams.model_fields, f"{at:%H:%M}")}


def runs_of(instance: dg.DagsterInstance, job: str, **tags: str) -> list[dg.DagsterRun]:
    """Runs of a job, oldest first."""
    run_tags = {name.replace("__", "/"): value for name, value in tags.items()}
    return list(reversed(instance.get_runs(dg.RunsFilter(job_name=job, tags=run_tags))))


def ticks(instance: dg.DagsterInstance, sensor: str) -> list[Any]:
    """All ticks of a sensor, newest first."""
    states = [state for state in instance.all_instigator_state() if state.instigator_name == sensor]
    return [
        tick
        for state in states
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
    ]


def ticked_again(instance: dg.DagsterInstance, sensor: str, n: int) -> Callable[[], bool]:
    """Whether the sensor ended `n` more ticks since this was called."""
    ended = ("SKIPPED", "SUCCESS", "FAILURE")
    before = {tick.tick_id for tick in ticks(instance, sensor)}
    return lambda: (
        len(
            [
                t
                for t in ticks(instance, sensor)
                if t.tick_id not in before and t.status.value in ended
            ]
        )
        >= n
    )


def forget(instance: dg.DagsterInstance, sensor: str) -> None:
    """Everything Dagster remembers of a sensor: its cursor, its state, its ticks with their run
    keys.
    """
    for state in instance.all_instigator_state():
        if state.instigator_name == sensor:
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id):
                instance.schedule_storage.purge_ticks(
                    state.instigator_origin_id, state.selector_id, tick.timestamp + 1
                )
            instance.delete_instigator_state(state.instigator_origin_id, state.selector_id)


def held_slots(instance: dg.DagsterInstance, pool: str) -> list[str]:
    """Ids of the runs that hold a slot of the pool."""
    return [
        slot.run_id for slot in instance.event_log_storage.get_concurrency_info(pool).claimed_slots
    ]


def step_pids(instance: dg.DagsterInstance, run_id: str) -> list[int]:
    """Processes that the steps of a run were executed in."""
    started = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
    return [
        int(str(entry.dagster_event.event_specific_data.metadata["pid"].value))
        for entry in started
        if entry.dagster_event
    ]


def lives(pid: int) -> bool:
    """Whether the process works on; one that ended and waits for its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
