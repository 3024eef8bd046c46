"""The store as a resource, with a heartbeat for every run that holds it. Knows runs; SQL is the library's."""

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import lru_cache

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store


@lru_cache(maxsize=4)
def open_store(settings: Settings) -> Store:
    """One engine per process and database: sensors tick every few seconds."""
    return Store.open(settings.store_url, organization=settings.organization, project=settings.project)


def store_resource(settings: Settings) -> dg.ResourceDefinition:
    """Opens the store. Inside a run a thread beats for it, because the default launcher does not notice a killed run.

    A plain resource, not a configurable one: a database URL may hold a password, and configuration is shown in the UI.
    """

    @dg.resource(description="Votes, comparisons, predictions, drift events and decisions; beats while a run holds it.")
    def store(context: dg.InitResourceContext) -> Iterator[Store]:
        opened = open_store(settings)
        run = context.dagster_run
        if run is None:
            yield opened
            return
        with _heartbeat(opened, run.run_id, run.job_name, settings.heartbeat_seconds):
            yield opened

    return store


@contextlib.contextmanager
def _heartbeat(store: Store, run_id: str, job: str, seconds: float) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # a locked database costs one beat, never the run
                store.heartbeats.beat(run_id, pid=os.getpid(), host=os.uname().nodename, job=job)
            stop.wait(seconds)

    thread = threading.Thread(target=beat, daemon=True, name=f"heartbeat-{run_id[:8]}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        store.heartbeats.clear(run_id)
