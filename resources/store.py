"""The store of this process as a resource."""

from functools import lru_cache

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.telemetry.tracing import find_call_observer


@lru_cache(maxsize=4)
def open_store(settings: Settings) -> Store:
    """Open the store once per process and database, because sensors tick every few seconds."""
    store = Store.of_home(settings)
    store.generation.observe_calls = find_call_observer(settings)
    return store
