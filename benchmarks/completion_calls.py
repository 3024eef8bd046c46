"""A provider on loopback that counts its calls and refuses at random, and a bare client of it.

Run by itself it is the provider: `python completion_calls.py '{"latency_s": 0.2}'`.
"""

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

CONCURRENCY, K = 64, 2
N_PROMPT_TOKENS, N_TOKENS = 24, 12  # billed for each answer


def ask_chats(url: str, token: str, n: int) -> None:
    """Ask our server for `n` answers, CONCURRENCY at once, in a process of its own."""
    import httpx

    async def ask(client: httpx.AsyncClient, places: asyncio.Semaphore, i: int) -> None:
        messages = [{"role": "user", "content": f"Name a river and say where it ends, {i}."}]
        async with places:
            answer = await client.post("/v1/chat/completions", json={"messages": messages})
            answer.raise_for_status()

    async def ask_all() -> None:
        headers, places = {"Authorization": f"Bearer {token}"}, asyncio.Semaphore(CONCURRENCY)
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            await asyncio.gather(*(ask(client, places, i) for i in range(n)))

    asyncio.run(ask_all())


@dataclass
class Counters:
    n_calls: int = 0
    n_answered: int = 0
    n_refused: int = 0
    n_early: int = 0  # calls within the waiting time of a refusal of the same request


@dataclass
class StubServer:
    """The provider, in another process."""

    base_url: str

    def read_counters(self) -> Counters:
        return Counters(**json.load(urllib.request.urlopen(self.base_url + "/counters")))

    def reset(self) -> None:
        urllib.request.urlopen(self.base_url + "/reset").close()


@contextmanager
def serve_stub(
    *, latency_s: float = 0.2, refused: float = 0.0, is_late: bool = False
) -> Iterator[StubServer]:
    """It answers after `latency_s`. A share `refused` of the calls gets 429 with Retry-After 1 s,
    and the same share 500, at once as most providers refuse, or as late as an answer.
    """
    options = json.dumps({"latency_s": latency_s, "refused": refused, "is_late": is_late})
    process = subprocess.Popen(
        [sys.executable, __file__, options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield StubServer(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait(10)


def run_stub(latency_s: float, refused: float, is_late: bool) -> None:
    """The other process: until its input ends."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    counters, draw = Counters(), random.Random(0)
    due: dict[str, float] = {}  # when a refused request may come again

    async def complete(request: Request) -> JSONResponse:
        body: dict[str, Any] = await request.json()
        counters.n_calls += 1
        lot = draw.random()
        request_key = f"{body['messages'][-1]['content']} {body['seed']}"
        counters.n_early += time.monotonic() < due.pop(request_key, 0.0)
        if lot >= 2 * refused or is_late:
            await asyncio.sleep(latency_s)
        if lot < 2 * refused:
            counters.n_refused += 1
            status, headers = (429, {"Retry-After": "1"}) if lot < refused else (500, None)
            if headers:
                due[request_key] = time.monotonic() + 1
            return JSONResponse({"error": {"message": "refused"}}, status, headers)
        counters.n_answered += 1
        text = f"The river {body['messages'][-1]['content'][14:20]} ends in sea {body['seed']}."
        return JSONResponse({
            "id": "stub",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
            }],
            "usage": {
                "prompt_tokens": N_PROMPT_TOKENS,
                "completion_tokens": N_TOKENS,
                "total_tokens": N_PROMPT_TOKENS + N_TOKENS,
            },
        })  # fmt: skip

    async def count(request: Request) -> JSONResponse:
        return JSONResponse(asdict(counters))

    async def reset(request: Request) -> JSONResponse:
        counters.__init__()  # type: ignore[misc]
        due.clear()
        return JSONResponse({})

    routes = [
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/counters", count),
        Route("/v1/reset", reset),
    ]
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=routes),
            log_level="error",
            lifespan="off",
            timeout_keep_alive=60,  # by default it would close some in use on a busy machine
        )
    )

    async def serve() -> None:
        running = asyncio.create_task(server.serve([listening]))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = server.force_exit = True
        await running

    asyncio.run(serve())


def run_bare_loop(url: str, frame: pd.DataFrame, max_retries: int = 0) -> None:
    """What one writes without us: gather over a semaphore. It keeps its texts in a list."""

    async def run() -> list[str]:
        from openai import AsyncOpenAI

        gate = asyncio.Semaphore(CONCURRENCY)
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


if __name__ == "__main__":
    run_stub(**json.loads(sys.argv[1]))
