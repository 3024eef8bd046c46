"""Reads runs, schedules and sensors from Dagster's own tables, without Dagster.

A web page cannot wait for Dagster: importing it takes a second, and it creates and migrates what it
opens. `tests/pipeline/test_dagster_runs.py` holds these queries equal to what the pinned version of
Dagster reports.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Connection,
    DateTime,
    Float,
    Integer,
    RowMapping,
    Select,
    Text,
    column,
    inspect,
    or_,
    select,
    table,
)

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.database_copy import engine_of
from rlhf_pipeline.store.engine import read_only_engine
from rlhf_pipeline.store.faults import describe_url, translate_errors

# below Dagster's home
RUNS_FILE = "history/runs.db"
EVENTS_FILE = "history/runs/index.db"  # the events that concern assets
PARTITION, RANGE = "dagster/partition", "dagster/asset_partition_range_"  # Dagster's tags
SCHEDULE, SENSOR = "dagster/schedule_name", "dagster/sensor_name"
RUNS = table(
    "runs",
    *(column(name, Text) for name in ("run_id", "pipeline_name", "status", "run_body")),
    column("id", Integer),
    column("create_timestamp", DateTime),
    column("update_timestamp", DateTime),
    column("start_time", Float),
    column("end_time", Float),
)
EVENTS = table(
    "event_logs",
    *(column(name, Text) for name in ("asset_key", "partition", "dagster_event_type")),
    column("timestamp", DateTime),
)
ASSETS = table("asset_keys", column("asset_key", Text), column("wipe_timestamp", DateTime))
MATERIALISED = (
    select(EVENTS.c.asset_key, EVENTS.c.partition)
    .join(ASSETS, ASSETS.c.asset_key == EVENTS.c.asset_key)
    .where(
        EVENTS.c.dagster_event_type == "ASSET_MATERIALIZATION",
        EVENTS.c.partition.is_not(None),
        or_(ASSETS.c.wipe_timestamp.is_(None), EVENTS.c.timestamp > ASSETS.c.wipe_timestamp),
    )
    .distinct()
)
TABLES = {RUNS_FILE: RUNS, EVENTS_FILE: EVENTS}


class PipelineRun(Record):
    """One run of a job, as Dagster stored it."""

    number: int  # grows with each run
    run_id: str
    job: str
    status: str
    day: str | None  # its partition; `first to last` for a run of several days
    started_by: str | None  # the schedule or sensor that requested it; None: a person
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class DagsterRuns:
    """Dagster's storage of one home, read only: SQLite files, or a database on a server."""

    def __init__(self, settings: Settings):
        self._folder = settings.home / "dagster"
        self._url = settings.dagster_storage

    def page(
        self,
        *,
        limit: int,
        before: int | None = None,
        job: str | None = None,
        statuses: Sequence[str] = (),
    ) -> list[PipelineRun]:
        """The newest runs, from number `before` down. Raises StoreError."""
        query = select(RUNS).order_by(RUNS.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(RUNS.c.id < before)
        if job is not None:
            query = query.where(RUNS.c.pipeline_name == job)
        if statuses:
            query = query.where(RUNS.c.status.in_(statuses))
        return [_read_run(row) for row in self._read(RUNS_FILE, query)]

    def list_jobs(self) -> list[str]:
        """Jobs that ran at least once, in alphabetical order. Raises StoreError."""
        names = select(RUNS.c.pipeline_name).distinct().order_by(RUNS.c.pipeline_name)
        return [row["pipeline_name"] for row in self._read(RUNS_FILE, names)]

    def list_materialised_days(self) -> dict[str, set[str]]:
        """The days of each asset that a run made since the asset was last wiped. Raises
        StoreError.
        """
        days: dict[str, set[str]] = {}
        for row in self._read(EVENTS_FILE, MATERIALISED):
            days.setdefault("/".join(json.loads(row["asset_key"])), set()).add(row["partition"])
        return days

    def _read(self, file: str, query: Select[Any]) -> Sequence[RowMapping]:
        """Empty without the file or the tables."""
        with self._connect(file) as connection:
            name = TABLES[file].name
            if connection is None or not inspect(connection).has_table(name):
                return ()
            return connection.execute(query).mappings().all()

    @contextmanager
    def _connect(self, file: str) -> Iterator[Connection | None]:
        path = self._folder / file
        if self._url is None and not path.is_file():
            yield None
            return
        engine = read_only_engine(path) if self._url is None else engine_of(self._url)
        where = str(path) if self._url is None else describe_url(engine.url)
        with translate_errors(f"of Dagster's runs, {where}"), engine.connect() as connection:
            yield connection


def _read_run(row: RowMapping) -> PipelineRun:
    tags: dict[str, str] = json.loads(row["run_body"])["tags"]
    ends = [tags.get(f"{RANGE}{end}") for end in ("start", "end")]
    return PipelineRun(
        number=row["id"],
        run_id=row["run_id"],
        job=row["pipeline_name"],
        status=row["status"],
        day=tags.get(PARTITION) or (f"{ends[0]} to {ends[1]}" if all(ends) else None),
        started_by=tags.get(SCHEDULE) or tags.get(SENSOR),
        created_at=row["create_timestamp"].replace(tzinfo=UTC),
        updated_at=row["update_timestamp"].replace(tzinfo=UTC),
        started_at=_read_moment(row["start_time"]),
        ended_at=_read_moment(row["end_time"]),
    )


def _read_moment(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
