"""What benchmarks of completions share: a STUB in a process of its own, prompts, a bare loop beside
it, and our way to ask for the same.

Run by itself it is that other process.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import pandas as pd  # noqa: E402

from rlhf_pipeline.completions import (  # noqa: E402
    CallParams,
    CompletionParams,
    Generation,
    OpenAICompatibleBackend,
    RequestedBy,
)
from rlhf_pipeline.completions import generate as ask_all  # noqa: E402
from rlhf_pipeline.frames import PROMPTS, check_frame  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from tests.providers.stub_provider import Counters, Fault, StubProvider  # noqa: E402

LATENCY_S = 0.2
CONCURRENCY = 64
K = 2
PARAMS = CompletionParams(k=K, temperatures=[0.7], top_ps=[1.0], max_new_tokens=48)
PRICES = {"prompt_price": 2.0, "completion_price": 8.0}  # of a million tokens; any will do


@dataclass
class StubServer:
    """A STUB in another process."""

    base_url: str

    def read_counters(self) -> Counters:
        with urllib.request.urlopen(self.base_url.removesuffix("/v1") + "/stub/counters") as answer:
            return Counters.model_validate_json(answer.read())

    def reset(self) -> None:
        urllib.request.urlopen(
            urllib.request.Request(self.base_url.removesuffix("/v1") + "/stub/reset", b"{}")
        ).close()


@contextmanager
def serve_stub(
    *chances: tuple[float, Fault],
    latency_s: float = LATENCY_S,
    chunk_s: float = 0.0,
    refuses: str | None = None,
    quota: tuple[int, float] | None = None,
) -> Iterator[StubServer]:
    asked = json.dumps(
        {
            "latency_s": latency_s,
            "chunk_s": chunk_s,
            "refuses": refuses,
            "quota": quota,
            "chances": [(share, fault.model_dump()) for share, fault in chances],
        }
    )
    process = subprocess.Popen(
        [sys.executable, __file__, asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield StubServer(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait(10)


def run_stub(asked: str) -> None:
    """The other process: until its input ends."""
    told = json.loads(asked)
    chances = [(share, Fault(**fault)) for share, fault in told.pop("chances")]
    with StubProvider(chances=chances, **told) as stub:
        print(stub.base_url, flush=True)
        sys.stdin.read()


def make_bench_prompts(n: int) -> pd.DataFrame:
    texts = [
        f"Prompt number {i}: name a river and say where it ends, in one sentence that a child "
        "would understand."
        for i in range(n)
    ]
    return check_frame(
        pd.DataFrame(
            {
                "day": "2026-01-01",
                "prompt_id": [f"p{i}" for i in range(n)],
                "text": texts,
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


def run_bare_loop(
    url: str, frame: pd.DataFrame, concurrency: int = CONCURRENCY, max_retries: int = 0
) -> None:
    """What one writes without us: gather over a semaphore, on the same event loop. It keeps its
    texts in a list.
    """

    async def run() -> list[str]:
        from openai import AsyncOpenAI

        gate = asyncio.Semaphore(concurrency)
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=max_retries) as client:

            async def one(text: str, seed: int) -> str:
                async with gate:
                    answer = await client.chat.completions.create(
                        model="stub-model",
                        messages=[{"role": "user", "content": text}],
                        temperature=0.7,
                        top_p=1.0,
                        seed=seed,
                        max_tokens=48,
                    )
                return answer.choices[0].message.content or ""

            return await asyncio.gather(
                *(one(text, seed) for text in frame["text"] for seed in range(K))
            )

    assert len(asyncio.run(run())) == len(frame) * K


@contextmanager
def open_fresh_store() -> Iterator[Store]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/store.db", organization="o", project="p") as store,
    ):
        store.migrate()
        yield store


def run_pipeline(
    store: Store,
    frame: pd.DataFrame,
    *urls: str,
    params: CompletionParams = PARAMS,
    asset: str = "bench",
    **calls: object,
) -> Generation:
    backends = [OpenAICompatibleBackend("stub-model", url, timeout_s=30) for url in urls]
    how = CallParams(**{"concurrency": CONCURRENCY, **PRICES, **calls})  # type: ignore[arg-type]
    return ask_all(
        frame,
        backends,
        params,
        ledger=store.generation,
        calls=how,
        requested_by=RequestedBy(asset),
    )


if __name__ == "__main__":
    run_stub(sys.argv[1])
