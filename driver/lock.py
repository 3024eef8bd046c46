"""Lets one process at a time drive a home, and none while Dagster's daemon runs on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep, time

import dagster as dg
import psutil
from filelock import FileLock, Timeout

from rlhf_pipeline.core.errors import ConfigurationError

LOCK_FILE = "driver.lock"
HEARTBEAT_SECONDS = 30  # dagster._daemon.controller.DEFAULT_HEARTBEAT_INTERVAL_SECONDS
SLACK_SECONDS = 5  # a busy daemon beats late


class HomeInUse(ConfigurationError):
    """Another process runs the jobs of this home."""


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Hold the home's lock until the block ends; a killed holder releases it too.

    Raises HomeInUse while another process holds it.
    """
    lock = FileLock(home / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as cause:
        raise HomeInUse(
            f"Another `rlhf` command (demo, loop, replay or run) already runs on {home}; two would "
            "take the same steps. Wait until it ends, or name another home, as in "
            "`make demo RLHF_HOME=var/demo`."
        ) from cause
    try:
        yield
    finally:
        lock.release()


def refuse_daemon(
    instance: dg.DagsterInstance,
    home: Path,
    report: Callable[[str], None],
    *,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Raises HomeInUse while Dagster's daemon runs on this home, here or on another machine.

    A daemon of this machine is found by its process. A recent heartbeat without one is that of a
    daemon elsewhere, or of one that has just ended: only the first beats again.
    """
    if _has_daemon_process(home / "dagster"):
        raise _daemon_error(home)
    first = _latest_heartbeat(instance)
    wait_s = first + HEARTBEAT_SECONDS + SLACK_SECONDS - time()
    if wait_s <= 0:
        return
    # at most one interval, wherever the other machine's clock is
    seconds = min(wait_s, HEARTBEAT_SECONDS + SLACK_SECONDS)
    report(
        f"Dagster's daemon ran here {max(time() - first, 0):.0f} s ago; waiting {seconds:.0f} s "
        "to see whether it still does."
    )
    pause(seconds)
    if _latest_heartbeat(instance) != first:
        raise _daemon_error(home)


def _daemon_error(home: Path) -> HomeInUse:
    return HomeInUse(
        f"Dagster's daemon runs on {home} and would start the same runs. Stop `rlhf dev` or the "
        "daemon's service, then try again."
    )


def _latest_heartbeat(instance: dg.DagsterInstance) -> float:
    """The Unix time at which a daemon last wrote one; 0 where none did."""
    return max((beat.timestamp for beat in instance.get_daemon_heartbeats().values()), default=0.0)


def _has_daemon_process(dagster_home: Path) -> bool:
    """Whether a daemon of this machine and user has this DAGSTER_HOME in its environment."""
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] == psutil.STATUS_ZOMBIE or not any(
            word == "dagster._daemon" or Path(word).name == "dagster-daemon" for word in words
        ):
            continue
        try:
            home = process.environ().get("DAGSTER_HOME")
        except psutil.Error:  # another user's, or gone meanwhile
            continue
        if home and Path(home).resolve() == dagster_home.resolve():
            return True
    return False
