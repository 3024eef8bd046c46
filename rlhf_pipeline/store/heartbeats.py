"""Heartbeats of runs, so that a killed one is noticed."""

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import heartbeats


class Heartbeat(Record):
    """A run whose last heartbeat was at `at`: process, host and job."""

    run_id: str
    pid: int
    host: str
    job: str
    started_at: datetime
    at: datetime


# Runs this process beats for.
_beating_here: set[str] = set()


class Heartbeats(Repository):
    """One row per living run."""

    @contextlib.contextmanager
    def keep_beating(self, run_id: str, *, job: str, seconds: float) -> Iterator[None]:
        """Beat every `seconds` from a thread while the block runs; a nested block in the same
        process does nothing.

        A row that remains marks a killed or interrupted process, whose work has to be done again.
        """
        if is_beating_here(run_id):
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(
            target=self._beat_until,
            args=(stop, run_id, job, seconds),
            daemon=True,
            name=f"heartbeat-{run_id[:8]}",
        )
        _beating_here.add(run_id)
        thread.start()
        ended = False
        try:
            yield
            ended = True
        except Exception:
            ended = True  # by an error of its own
            raise
        finally:
            stop.set()
            thread.join()
            _beating_here.discard(run_id)
            if ended:
                # the row of an ended run is deleted later
                with contextlib.suppress(StoreError):
                    self.clear(run_id)

    def _beat_until(self, stop: threading.Event, run_id: str, job: str, seconds: float) -> None:
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # a locked database costs one beat, never the run
                self.beat(run_id, pid=os.getpid(), host=os.uname().nodename, job=job)
            stop.wait(seconds)

    def beat(self, run_id: str, *, pid: int, host: str, job: str) -> None:
        """Record that the run is alive. A resumed run takes over the row of its dead process."""
        now = self._database.clock.now()
        beat = Heartbeat(run_id=run_id, pid=pid, host=host, job=job, started_at=now, at=now)
        with self._database.write_transaction() as connection:
            self._database.upsert(
                connection, heartbeats, [beat.model_dump()], ("run_id",), unchanged=("started_at",)
            )

    def clear(self, run_id: str) -> None:
        """Delete the row of a run that ended, if there is one."""
        with self._database.write_transaction() as connection:
            connection.execute(heartbeats.delete().where(self._is_of_run(run_id)))

    def prune(self, before: datetime) -> int:
        """Delete the rows of runs whose last heartbeat was before a moment; the number of them."""
        with self._database.write_transaction() as connection:
            return connection.execute(heartbeats.delete().where(heartbeats.c.at < before)).rowcount

    def find_recent(self, seconds: float) -> list[Heartbeat]:
        """Runs with a heartbeat within the last `seconds`."""
        return self._read(
            heartbeats.c.at >= self._database.clock.now() - timedelta(seconds=seconds),
        )

    def get(self, run_id: str) -> Heartbeat | None:
        return next(iter(self._read(self._is_of_run(run_id))), None)

    def _is_of_run(self, run_id: str) -> Any:
        return heartbeats.c.run_id == run_id

    def _read(self, *conditions: Any) -> list[Heartbeat]:
        columns = [heartbeats.c[name] for name in Heartbeat.model_fields]
        rows = self._database.fetch_mappings(
            select(*columns).where(*conditions).order_by(heartbeats.c.at)
        )
        return [Heartbeat.model_validate(dict(row)) for row in rows]


def is_beating_here(run_id: str) -> bool:
    """Whether this process sends the heartbeats of the run."""
    return run_id in _beating_here
