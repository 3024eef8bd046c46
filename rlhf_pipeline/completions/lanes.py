"""Completes the work of a run by the lanes that fit its backends: hosted, batched or local."""

import asyncio
import random
from collections.abc import Mapping

from rlhf_pipeline.completions.base import BatchBackend, DirectBackend, HostedBackend, Reply
from rlhf_pipeline.completions.batch_lane import BatchLane
from rlhf_pipeline.completions.drive import (
    CompletionWork,
    StopSignal,
    WorkLane,
    drive,
    drive_uninterrupted,
)
from rlhf_pipeline.completions.hosted_lane import HostedLane, event_loop
from rlhf_pipeline.completions.limits import Pause
from rlhf_pipeline.completions.local_lane import LocalLane, OnItem
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.protocols import Lane


def complete_local(
    work: CompletionWork,
    lane: Lane,
    backend: DirectBackend,
    batch_size: int,
    on_text: OnItem | None = None,
) -> None:
    """Complete all of `work` on this machine. Raises the errors of the backend, once everything
    made by then is recorded.
    """
    drive(work, [LocalLane(work, lane, backend, batch_size, on_text)])


def complete_hosted(
    work: CompletionWork,
    backends: Mapping[Lane, HostedBackend],
    *,
    on_text: OnItem | None = None,
) -> dict[Lane, Reply]:
    """Complete all of `work` by providers; return the lanes that were closed, and why. A waiting
    lane does not delay the others.
    """
    if not work.left:
        return {}
    pauses: dict[str, Pause] = {}

    def open_lane(key: Lane, backend: HostedBackend, loop: asyncio.AbstractEventLoop) -> WorkLane:
        if not work.params.batch:
            pause = pauses.setdefault(key[0], Pause())
            return HostedLane(work, key, backend, loop, pause=pause, on_text=on_text)
        if not isinstance(backend, BatchBackend):
            raise ConfigurationError(
                f"The backend {backend.name} has no Batch API here. Set batch to false, or use "
                "openai_compatible."
            )
        return BatchLane(work, key, backend, random.Random())

    def run(stopping: StopSignal) -> dict[Lane, Reply]:
        with event_loop() as loop:
            lanes = [open_lane(key, backend, loop) for key, backend in backends.items()]
            drive(work, lanes, stopping=stopping)
        return {lane.key: lane.closed for lane in lanes if lane.closed is not None}

    return drive_uninterrupted(run)
