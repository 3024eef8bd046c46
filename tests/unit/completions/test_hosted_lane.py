"""The lane of single calls."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.hosted_lane import HostedLane, event_loop
from rlhf_pipeline.completions.limits import CallParams, Pause
from rlhf_pipeline.protocols import Claim, WorkItem


def test_claims_that_are_not_withdrawn_wake_the_calling_thread_again() -> None:
    woken: list[Any] = []
    work = CompletionWork("run", None, [], [], CallParams(), {0, 1})  # type: ignore[arg-type]
    loop: Any = SimpleNamespace(call_soon_threadsafe=woken.append)
    backend: Any = None
    lane = HostedLane(work, ("here", "m"), backend, loop, pause=Pause())
    lane.add([Claim(0, 0, 0), Claim(1, 0, 0)], is_all=True)
    assert lane.withdraw({0}) == [0]
    assert len(woken) == 2


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_result_that_is_not_recorded_keeps_the_place_of_its_call() -> None:
    begun: list[str] = []

    class Backend:
        has_answered = True

        async def call(self, request: CompletionRequest, on_text: Any) -> Reply:
            begun.append(request.prompt)
            return Reply("succeeded", "ok", "metered", text="yes")

        async def close(self) -> None:
            pass

    requests = [
        CompletionRequest(
            prompt_id=prompt,
            prompt=prompt,
            temperature=0,
            top_p=1,
            sample_index=0,
            seed=0,
            max_tokens=9,
        )
        for prompt in ("first", "second")
    ]
    items = [
        WorkItem(n, n, f"p{n}", "here", "m", 0, "{}", f"k{n}", reserve=0, is_metered=True)
        for n in range(2)
    ]
    work = CompletionWork("run", None, items, requests, CallParams(concurrency=1), {0, 1})  # type: ignore[arg-type]
    backend: Any = Backend()
    with event_loop() as loop:
        lane = HostedLane(work, ("here", "m"), backend, loop, pause=Pause())
        lane.start(threading.Event())
        lane.add([Claim(0, 0, 0), Claim(1, 0, 0)], is_all=True)
        until(lambda: len(lane.take_attempts(10)) == 1)
        time.sleep(0.1)
        assert begun == ["first"], "a kill now pays one call twice, which is all that may be"
        lane.settled()
        until(lambda: begun == ["first", "second"])
        lane.stop()
