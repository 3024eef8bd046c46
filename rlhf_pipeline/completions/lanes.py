"""Completes the work of a run by the lanes that fit its backends: hosted or local."""

from collections.abc import Mapping

from rlhf_pipeline.completions.base import DirectBackend, HostedBackend, Reply
from rlhf_pipeline.completions.drive import (
    CompletionWork,
    StopSignal,
    drive,
    drive_uninterrupted,
)
from rlhf_pipeline.completions.hosted_lane import HostedLane, event_loop
from rlhf_pipeline.completions.limits import Pause
from rlhf_pipeline.completions.local_lane import LocalLane, OnItem
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
    pauses = {provider: Pause() for provider, _ in backends}

    def run(stopping: StopSignal) -> dict[Lane, Reply]:
        with event_loop() as loop:
            lanes = [
                HostedLane(work, key, backend, loop, pause=pauses[key[0]], on_text=on_text)
                for key, backend in backends.items()
            ]
            drive(work, lanes, stopping=stopping)
        return {lane.key: lane.closed for lane in lanes if lane.closed is not None}

    return drive_uninterrupted(run)
