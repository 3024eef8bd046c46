"""The store as a resource, with a heartbeat for a run that is executed in this process. Knows runs;
SQL is the library's.
"""

from collections.abc import Iterator
from functools import lru_cache

import dagster as dg

from resources.orphans import is_step_process
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store


@lru_cache(maxsize=4)
def open_store(settings: Settings) -> Store:
    """One engine per process and database: sensors tick every few seconds."""
    return Store.open(
        settings.store_url, organization=settings.organization, project=settings.project
    )


def store_resource(settings: Settings) -> dg.ResourceDefinition:
    """Opens the store. A run without the executors of `jobs.executors`, as the demo's, beats while
    it holds the store.

    A plain resource, not a configurable one: a database URL may hold a password, and configuration
    is shown in the UI.
    """

    @dg.resource(
        description="Votes, comparisons, predictions, drift events and decisions; beats while a "
        "run holds it."
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

    return store
