"""Refuses to replace or move a home while its runs or Dagster's daemon use it."""

import tempfile
import time
from pathlib import Path

from rlhf_pipeline.cli import driver
from rlhf_pipeline.cli.init import STORAGE_ON_POSTGRES
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.store import Heartbeat, Store, database_copy, database_dump

DAEMON_BEATS_S = 30  # how often Dagster's daemon writes its heartbeat


def refuse_while_active(settings: Settings, *, replacing: bool = False) -> None:
    """Raises ConfigurationError while a run of this home beats, or Dagster's daemon does, on a
    server or in its files.

    With `replacing`, damaged SQLite files do not stop it: a restore repairs them.
    """
    _refuse_runs(settings, replacing=replacing)
    _refuse_daemon(settings, replacing=replacing)
    if settings.server_url is not None and (settings.home / "store.db").exists():
        refuse_while_active(settings.model_copy(update={"server_url": None}), replacing=replacing)


def _refuse_runs(settings: Settings, *, replacing: bool) -> None:
    try:
        beating = _beating_runs(settings)
    except StoreError as error:
        is_local = database_dump.is_sqlite(settings.store_url)
        if not (
            replacing
            and is_local
            and database_dump.is_damaged(database_dump.sqlite_file(settings.store_url))
        ):
            raise
        echo(f"Cannot tell whether runs are under way; the restore goes on. {error}")
        return
    if beating:
        jobs = ", ".join(sorted({beat.job for beat in beating}))
        raise ConfigurationError(
            f"{len(beating)} runs are under way ({jobs}). Let them finish, or end them in Dagster, "
            "then try again."
        )


def _beating_runs(settings: Settings) -> list[Heartbeat]:
    if not database_copy.has_tables(settings.store_url) or not database_copy.n_rows(
        settings.store_url, {"heartbeats"}
    ):
        return []
    with Store.of_home(settings) as store:
        return store.heartbeats.find_recent(settings.dead_after_seconds)


def _refuse_daemon(settings: Settings, *, replacing: bool) -> None:
    try:
        silent_s = _daemon_silent_s(settings)
    except StoreError as error:
        if not (
            replacing
            and settings.dagster_storage is None
            and driver.has_damaged_files(settings.home)
        ):
            raise
        echo(f"Cannot tell whether Dagster's daemon works here; the restore goes on. {error}")
        return
    if silent_s is None or silent_s >= 2 * DAEMON_BEATS_S:
        return
    # the clocks of both may differ
    left = min(2 * DAEMON_BEATS_S - silent_s, 2 * DAEMON_BEATS_S)
    echo(
        f"Dagster's daemon ran {silent_s:.0f} s ago; waiting {left:.0f} s to see whether it still "
        "does."
    )
    time.sleep(left)
    again = _daemon_silent_s(settings)
    if again is not None and again < 2 * DAEMON_BEATS_S:
        where = (
            settings.home
            if settings.dagster_storage is None
            else f"the databases of {settings.home}"
        )
        raise ConfigurationError(
            f"Dagster's daemon works in {where}. Stop `rlhf dev` or the daemon's service, then "
            "try again."
        )


def _daemon_silent_s(settings: Settings) -> float | None:
    """Seconds since the last heartbeat of Dagster's daemon; None where there is none."""
    environ = settings.dagster_environ
    state = {}
    if settings.dagster_storage is None:
        if (settings.home / "dagster").exists():
            state = driver.read_dagster_state(environ)
    elif database_copy.has_tables(settings.dagster_storage):
        # Without the home, which may be new or lost: the daemon may work on another machine.
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "dagster.yaml").write_text(
                f"telemetry:\n  enabled: false\n{STORAGE_ON_POSTGRES}", encoding="utf-8"
            )
            state = driver.read_dagster_state({**environ, "DAGSTER_HOME": folder})
    silent: float | None = state.get("daemon_silent_s")
    return silent
