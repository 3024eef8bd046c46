"""The lane of single calls."""

from types import SimpleNamespace
from typing import Any

from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.hosted_lane import HostedLane
from rlhf_pipeline.completions.limits import CallParams, Pause
from rlhf_pipeline.protocols import Claim


def test_claims_that_are_not_withdrawn_wake_the_calling_thread_again() -> None:
    woken: list[Any] = []
    work = CompletionWork("run", None, [], [], CallParams(), {0, 1})  # type: ignore[arg-type]
    loop: Any = SimpleNamespace(call_soon_threadsafe=woken.append)
    backend: Any = None
    lane = HostedLane(work, ("here", "m"), backend, loop, pause=Pause())
    lane.add([Claim(0, 0, 0), Claim(1, 0, 0)], is_all=True)
    assert lane.withdraw({0}) == [0]
    assert len(woken) == 2
