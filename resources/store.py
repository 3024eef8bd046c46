"""The store as a resource, with a heartbeat for runs executed in this process."""

from collections.abc import Iterator
from functools import lru_cache

import dagster as dg

from resources.orphans import is_step_process
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store, homes
from rlhf_pipeline.telemetry.tracing import find_call_observer


@lru_cache(maxsize=4)
def open_store(settings: Settings) -> Store:
    """Open the store once per process and database, because sensors tick every few seconds."""
    store = Store.of_home(settings)
    store.generation.observe_calls = find_call_observer(settings)
    return store


def store_resource(settings: Settings) -> dg.ResourceDefinition:
    """The store. A run without the executors of `jobs.executors`, such as the demo's, sends
    heartbeats while it holds the store.

    Not configurable, because a database URL may hold a password and the UI shows configuration.
    """

    @dg.resource(
        description="Votes, comparisons, predictions, drift events and decisions; sends "
        "heartbeats while a run holds it."
    )
    def store(context: dg.InitResourceContext) -> Iterator[Store]:
        opened = open_store(settings)
        run = context.dagster_run
        if run is None or is_step_process(run.run_id):
            yield opened
            return
        with opened.heartbeats.keep_beating(
            run.run_id, job=run.job_name, seconds=settings.heartbeat_seconds
        ):
            yield opened
        homes.record_end(settings, opened.database)

    return store
