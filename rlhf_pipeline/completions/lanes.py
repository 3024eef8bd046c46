"""Completes the work of a run by providers, in lanes of single calls or of batches."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rlhf_pipeline.completions.base import HostedBackend
from rlhf_pipeline.completions.batch_lane import BatchLane
from rlhf_pipeline.completions.hosted_lane import HostedLane
from rlhf_pipeline.completions.limits import Pause
from rlhf_pipeline.completions.local_lane import OnItem
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.work import CompletionWork, ProviderLane
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.protocols import Lane


def complete_hosted(
    work: CompletionWork, backends: Mapping[Lane, HostedBackend], on_text: OnItem | None = None
) -> list[ProviderLane]:
    """Complete all of `work` by providers; return the lanes that were closed. A waiting lane does
    not delay the others.

    Runs in another thread: an interrupt of this one ends the calls, and is raised once they are
    recorded. Raises StoreError if the ledger refuses for several seconds, and bugs of backends.
    """
    loop: asyncio.AbstractEventLoop | None = None

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        pauses = {provider: Pause() for provider, _ in backends}
        lanes = [
            _open_batches(work, key, backend)
            if work.params.batch
            else HostedLane(work, key, backend, pauses[key[0]], on_text)
            for key, backend in backends.items()
        ]
        await asyncio.gather(*(lane.run() for lane in lanes))

    interrupt: BaseException | None = None
    with ThreadPoolExecutor(1, "calls") as pool:
        job = pool.submit(asyncio.run, run())
        while True:
            try:
                error = job.exception() or work.error
                break
            except BaseException as cause:  # noqa: BLE001  raised below
                interrupt = interrupt or cause
                work.is_stopping = True
                with suppress(RuntimeError):  # it has ended meanwhile
                    if loop is not None:
                        loop.call_soon_threadsafe(work.stop)
    if interrupt is not None:
        raise interrupt
    if error is not None:
        raise error
    return [lane for lane in work.lanes if lane.closed is not None]


def _open_batches(work: CompletionWork, key: Lane, backend: HostedBackend) -> BatchLane:
    if not isinstance(backend, OpenAICompatibleBackend):
        raise ConfigurationError(
            f"The backend {backend.name} has no Batch API here. Set batch to false, or use "
            "openai_compatible."
        )
    return BatchLane(work, key, backend)
