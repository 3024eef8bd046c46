"""Copies Dagster's runs, events, ticks and cursors from its SQLite files to Postgres.

On SQLite each run's events lie in a file of their own, beside an index of those that concern
assets; on Postgres all are one table with one numbering. So events go through Dagster's own
storage, in order of time, and get new numbers; every other table is the same on both sides and is
copied unchanged.
"""

import heapq
import time
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._serdes import serialize_value
from dagster_postgres import DagsterPostgresStorage, PostgresEventLogStorage

from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.store.database_copy import CopiedTable, TableHash, copy_database

# Tables of each SQLite file that are the same on Postgres. Left out: heartbeats of earlier daemons,
# the old database's identity and migrations, and the tables that the events themselves fill.
RUN_TABLES = ("runs", "run_tags", "snapshots", "bulk_actions", "backfill_tags", "kvs")
SCHEDULE_TABLES = ("jobs", "instigators", "job_ticks", "asset_daemon_asset_evaluations")
INDEX_TABLES = ("dynamic_partitions", "concurrency_limits")
EVENTS_PER_PAGE = 50  # read of one run; all runs are open at the same time
PLAIN_AT_ONCE = 200
DAY_MS = 24 * 3600 * 1000


def read_state(instance: dg.DagsterInstance) -> dict[str, Any]:
    """Seconds since a daemon's last heartbeat, active runs and materialised days by asset, for
    `rlhf check`, `restore` and `migrate`.
    """
    beats = [beat.timestamp for beat in instance.get_daemon_heartbeats().values()]
    active = [
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.CANCELING,
    ]
    runs = instance.get_run_records(dg.RunsFilter(statuses=active))
    made = {
        key.to_user_string(): sorted(instance.get_materialized_partitions(key))
        for key in instance.get_asset_keys()
        if instance.get_latest_materialization_event(key) is not None
    }
    return {
        "daemon_silent_s": None if not beats else time.time() - max(beats),
        "runs": [record.dagster_run.run_id for record in runs],
        "n_runs": instance.get_runs_count(),
        "made": made,
    }


def open_target(url: str) -> DagsterPostgresStorage:
    """Dagster's storage on Postgres; creates the tables that are missing."""
    return DagsterPostgresStorage(url, should_autocreate_tables=True)


def move_history(dagster_home: Path, url: str, progress: Progress) -> Iterator[CopiedTable]:
    """Everything below `dagster_home` into the empty database at `url`, with counts and hashes of
    both sides.
    """
    history = dagster_home / "history"
    if not (history / "runs.db").exists():
        return  # nothing ran yet
    target = open_target(url)
    parts = (
        (history / "runs.db", RUN_TABLES),
        (dagster_home / "schedules" / "schedules.db", SCHEDULE_TABLES),
    )
    for file, tables in (*parts, (history / "runs" / "index.db", INDEX_TABLES)):
        if file.exists():
            yield from copy_database(
                "dagster", f"sqlite:///{file}", url, only=tables, progress=progress
            )
    yield from _copy_events(history / "runs", target, progress)


def _copy_events(
    folder: Path, target: DagsterPostgresStorage, progress: Progress
) -> Iterator[CopiedTable]:
    source = SqliteEventLogStorage(str(folder))
    storage = target.event_log_storage
    assert isinstance(storage, PostgresEventLogStorage)  # as the class of `target` makes it
    # one connection kept, not one per event
    storage.optimize_for_webserver(statement_timeout=DAY_MS, pool_recycle=3600, max_overflow=4)
    runs = sorted(
        "" if path.name == ".db" else path.stem
        for path in folder.glob("*.db")
        if path.stem != "index"
    )
    runs += [""] if (folder / ".db").exists() and "" not in runs else []
    # old events do not bring back an asset that was wiped
    kept = set(source.all_asset_keys())
    before = TableHash()
    in_order = heapq.merge(
        *(_read_entries(source, run) for run in runs), key=lambda entry: entry.timestamp
    )
    for concerns_assets, entries in groupby(in_order, key=lambda entry: _is_needed(entry, kept)):
        while batch := list(islice(entries, 1 if concerns_assets else PLAIN_AT_ONCE)):
            for entry in batch:
                before.add([entry.run_id, serialize_value(entry)])
            if concerns_assets:
                storage.store_event(batch[0])
            else:
                with storage._connect() as connection:
                    connection.execute(storage.prepare_insert_event_batch(batch))
            # the total is unknown: events lie in one file per run
            progress(before.rows, 0, "dagster.event_logs")
    after = TableHash()
    for run in runs:
        for entry in _read_entries(storage, run):
            after.add([entry.run_id, serialize_value(entry)])
    yield CopiedTable(
        database="dagster",
        table="event_logs",
        n_source=before.rows,
        n_target=after.rows,
        source_hash=before.hex,
        target_hash=after.hex,
    )
    yield _compare_assets(source, storage)


def _compare_assets(source: Any, target: Any) -> CopiedTable:
    """What Dagster's UI shows of assets: the days of each, and when each was made last."""
    hashes = []
    for storage in (source, target):
        found = TableHash()
        for key in storage.all_asset_keys():
            record = next(iter(storage.get_asset_records([key])), None)
            latest = record.asset_entry.last_materialization if record else None
            found.add(
                [
                    key.to_string(),
                    sorted(storage.get_materialized_partitions(key)),
                    latest.timestamp if latest else None,
                ]
            )
        hashes.append(found)
    before, after = hashes
    return CopiedTable(
        database="dagster",
        table="assets",
        n_source=before.rows,
        n_target=after.rows,
        source_hash=before.hex,
        target_hash=after.hex,
    )


def _is_needed(entry: EventLogEntry, kept: set[dg.AssetKey]) -> bool:
    event = entry.dagster_event
    if event is None:
        return False
    if event.event_type in ASSET_CHECK_EVENTS:
        return True
    return event.event_type in ASSET_EVENTS and event.asset_key in kept


def _read_entries(storage: Any, run: str) -> Iterator[EventLogEntry]:
    cursor = None
    while True:
        page = storage.get_records_for_run(run, cursor=cursor, limit=EVENTS_PER_PAGE)
        yield from (record.event_log_entry for record in page.records)
        if not page.has_more:
            return
        cursor = page.cursor
