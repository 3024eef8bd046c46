"""Asks stub providers and scripted backends: what every test of this folder shares."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import pandas as pd
from pydantic import SecretStr

from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.protocols import WorkLedger
from rlhf_pipeline.generate.completions import (
    AnthropicBackend,
    CallParams,
    CompletionParams,
    CompletionRequest,
    CompletionResult,
    Generation,
    HostedBackend,
    OpenAICompatibleBackend,
    Reply,
    RequestedBy,
    generate,
)
from rlhf_pipeline.store import Store
from tests.providers.stub_provider import Fault, StubProvider

FROM_DAGSTER = RequestedBy(run_id="asking")  # a run that the sensor `paused_runs` resumes
KEY = "sk-canary-0d9f4c1e"
PARAMS = CompletionParams(k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)
FAST: dict[str, Any] = {
    "backoff_s": 0.01,
    "max_backoff_s": 0.05,
    "prompt_price": 1.0,
    "completion_price": 1.0,
}
BACKENDS: dict[str, Callable[..., HostedBackend]] = {
    "openai": OpenAICompatibleBackend,
    "anthropic": AnthropicBackend,
}
YES = Reply(
    outcome="succeeded",
    kind="succeeded",
    billing="metered",
    text="yes",
    finish_reason="stop",
    n_prompt_tokens=2,
    n_tokens=1,
)


def prompts_of(n: int, text: str = "Prompt number {}?") -> pd.DataFrame:
    return check_frame(
        pd.DataFrame(
            {
                "day": "2026-01-01",
                "prompt_id": [f"p{i}" for i in range(n)],
                "text": [text.format(i) for i in range(n)],
                "category": "factual",
                "difficulty": "easy",
                "source": "templates",
                "template_id": None,
                "variables": "{}",
                "reference": None,
                "seed": 1,
            }
        ),
        PROMPTS,
    )


def ask(
    ledger: WorkLedger,
    backend: Any,
    n: int | pd.DataFrame = 10,
    params: CompletionParams = PARAMS,
    progress: Any = lambda *_: None,
    stream: bool = False,
    requested_by: RequestedBy = FROM_DAGSTER,
    **calls: Any,
) -> Generation:
    return generate(
        prompts_of(n) if isinstance(n, int) else n,
        stream_calls(backend) if stream else backend,
        params,
        ledger=ledger,
        calls=CallParams(**(FAST | calls)),
        progress=progress,
        requested_by=requested_by,
    )


def stream_calls(backend: Any) -> Any:
    """The backend, whose calls are streamed as the chat's are."""
    streamed = copy(backend)
    streamed.call = partial(backend.call, on_text=lambda _: None)
    return streamed


def openai(stub: StubProvider, key: str = KEY, **more: Any) -> OpenAICompatibleBackend:
    return OpenAICompatibleBackend("stub-model", stub.base_url, SecretStr(key), **more)


def status(number: int, wait_ms: int | None = None, as_: Any = "ms", **more: Any) -> Fault:
    return Fault(kind="status", status=number, retry_after_ms=wait_ms, retry_after_as=as_, **more)


def calls_of(store: Store, outcome: Generation) -> list[dict[str, Any]]:
    return list(store.generation.read_calls(outcome.run_id))


def kinds(store: Store, outcome: Generation) -> Counter[str]:
    return Counter(call["kind"] for call in calls_of(store, outcome))


class Scripted:
    """A hosted backend that replies what `answer` gives for the number of the call, from 1 on."""

    name = "scripted"
    model = model_version = "m"
    provider = "nowhere"
    has_answered = True

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self._answer = answer
        self.asked: list[float] = []

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        raise NotImplementedError

    async def call(self, request: CompletionRequest, on_text: Any = None) -> Reply:
        self.asked.append(time.monotonic())
        answer: Any = self._answer(len(self.asked))
        reply: Reply = await answer if asyncio.iscoroutine(answer) else answer
        return reply

    async def close(self) -> None: ...
