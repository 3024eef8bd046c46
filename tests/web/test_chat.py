"""`POST /v1/chat/completions` through OpenAI's own client, from the policy here and a provider."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import SecretStr
from sqlalchemy import select
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import NotFound, PipelineError
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, BASE_HASH
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import answers
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.chat.server import LOCAL_AT_MOST
from rlhf_pipeline.web.server import WebServer
from tests.providers.stub_provider import Fault, StubProvider
from tests.vllm_stub import MODEL, VLLMStub
from tests.web.conftest import UNCACHED, ShiftedClock, Web

MOON = "Write a calm line about the moon in the city."
KEY = "sk-canary-90ab"
ASKED: dict[str, Any] = {
    "model": "demo.policy",
    "messages": [{"role": "user", "content": MOON}],
    "seed": 7,
    "max_tokens": 24,
}


@contextmanager
def serve(settings: Settings) -> Iterator[Web]:
    with Store.open(settings.store_url) as store:
        store.migrate()
        with WebServer(
            create_app(settings, store, has_pages=False, cache_times=UNCACHED)
        ) as server:
            yield Web(store, settings, server.url, ShiftedClock())


def open_client(web: Web, *roles: Role, **more: Any) -> openai.OpenAI:
    token = web.client(*(roles or (Role.ENGINEER,)), **more).headers["Authorization"]
    return openai.OpenAI(
        base_url=f"{web.url}/v1", api_key=token.removeprefix("Bearer "), max_retries=0
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    settings = Settings(home=tmp_path_factory.mktemp("chat"), policy=str(EMBEDDED_POLICY))
    workspace = Workspace(settings)
    prepare(workspace)
    workspace.champions.policy()
    with serve(settings) as web:
        yield web


@pytest.fixture
def stub() -> Iterator[StubProvider]:
    with StubProvider() as stub:
        yield stub


@pytest.fixture
def proxy(stub: StubProvider, tmp_path: Path) -> Iterator[Web]:
    settings = Settings(
        home=tmp_path,
        completion_backend="openai_compatible",
        base_url=stub.base_url,
        api_model="stub-model",
        api_key=SecretStr(KEY),
    )
    with serve(settings) as web:
        yield web


def test_local_answer_is_the_completion_of_the_same_request(local: Web) -> None:
    [whole] = load_policy(EMBEDDED_POLICY).generate(
        [MOON], temperature=1.0, top_p=1.0, seeds=[7], max_new_tokens=24
    )
    with open_client(local) as client:
        [model] = client.models.list().data
        answer = client.chat.completions.create(**ASKED)
        *chunks, last = client.chat.completions.create(
            **ASKED, stream=True, stream_options={"include_usage": True}
        )
    assert model.id == answer.model == last.model == "demo.policy@1"
    assert answer.id.startswith("answer_")
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == (whole.text, whole.finish_reason)
    assert answer.usage is not None
    counts = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert counts == (whole.n_prompt_tokens, whole.n_tokens)
    assert last.usage == answer.usage
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert len(pieces) > 4
    assert "".join(pieces) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": [{"type": "function"}]}, "tools is not served"),
        ({"response_format": {"type": "json_object"}}, "response_format is not served"),
        ({"logprobs": True}, "logprobs is not served"),
        ({"n": 2}, "n: Input should be 1"),
        ({"messages": []}, "expected a list of messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "the message to answer"),
        ({"max_tokens": 4000}, "The prompt has 15 tokens"),
        ({"stop": [""]}, "body.stop.0: "),
    ],
)
def test_unserved_request_is_a_400_that_says_why(
    local: Web, change: dict[str, Any], reason: str
) -> None:
    with open_client(local) as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**(ASKED | change))
    assert reason in refused.value.message
    assert refused.value.body["type"] == "invalid_request_error"  # type: ignore[index]


def test_answer_without_a_limit_ends_where_the_context_does(local: Web) -> None:
    long = {"max_tokens": None, "temperature": 2, "seed": 3}
    with open_client(local) as client:
        free = client.chat.completions.create(**(ASKED | long | {"temperature": 0}))
        assert free.choices[0].finish_reason == "stop"
        full = client.chat.completions.create(**(ASKED | long))
        assert full.usage is not None
        assert full.usage.total_tokens <= 256
        if full.choices[0].finish_reason == "length":
            assert full.usage.total_tokens == 256
        turns = [{"role": "user", "content": f"{MOON} " * 60}]
        with pytest.raises(openai.BadRequestError, match=r"context of 256\. Shorten"):
            client.chat.completions.create(**(ASKED | long | {"messages": turns}))


def test_harmless_fields_change_nothing(local: Web) -> None:
    harmless = {
        "model": "",
        "store": True,
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
    }
    parts = [{"type": "text", "text": MOON[:9]}, {"type": "text", "text": MOON[9:]}]
    with open_client(local) as client:
        plain = client.chat.completions.create(**ASKED)
        same = client.chat.completions.create(
            **(ASKED | harmless | {"messages": [{"role": "user", "content": parts}]})
        )
    assert same.choices == plain.choices
    assert same.id != plain.id


def test_refusals_have_the_shape_of_openai(local: Web) -> None:
    with open_client(local) as client, pytest.raises(openai.NotFoundError) as other:
        client.chat.completions.create(**(ASKED | {"model": "gpt-4o"}))
    assert other.value.code == "model_not_found"
    assert "demo.policy@1" in other.value.message
    with open_client(local, Role.ANNOTATOR) as client, pytest.raises(openai.PermissionDeniedError):
        client.models.list()
    with open_client(local, scopes=["serve"]) as client:
        assert client.models.list().data
        with local.client(Role.ENGINEER, scopes=["serve"]) as api:
            assert api.get("/users").status_code == 403
    with openai.OpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        large = httpx.post(f"{local.url}/v1/chat/completions", content=b"x" * 2_000_001)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


def test_without_a_policy_the_error_names_the_cure(web: Web) -> None:
    with open_client(web) as client, pytest.raises(openai.NotFoundError, match="rlhf run"):
        client.chat.completions.create(**ASKED)


def test_full_queue_answers_429_and_others_go_on(local: Web) -> None:
    statuses: list[tuple[int, str | None]] = []

    def ask(client: httpx.Client, seed: int) -> None:
        body = ASKED | {"seed": seed, "max_tokens": 60, "temperature": 2}
        answer = client.post(f"{local.url}/v1/chat/completions", json=body)
        statuses.append((answer.status_code, answer.headers.get("retry-after")))

    api = local.client(Role.ADMIN)
    threads = [threading.Thread(target=ask, args=(api, n)) for n in range(LOCAL_AT_MOST + 3)]
    for thread in threads:
        thread.start()
    longest, started = 0.0, time.perf_counter()
    while any(thread.is_alive() for thread in threads):
        began = time.perf_counter()
        assert api.get("/me").status_code == 200
        longest = max(longest, time.perf_counter() - began)
    assert longest < (time.perf_counter() - started) / 3
    assert set(statuses) == {(200, None), (429, "1")}
    assert statuses.count((200, None)) >= LOCAL_AT_MOST


def test_proxy_streams_the_first_token_before_the_last_is_made(
    proxy: Web, stub: StubProvider
) -> None:
    stub.chunk_s = 0.05
    body = ASKED | {"model": "stub-model", "stop": ["\n"]}
    with open_client(proxy) as client:
        began = time.monotonic()
        times, text = [], ""
        for chunk in client.chat.completions.create(**body, stream=True):
            text += chunk.choices[0].delta.content or ""
            times.append(time.monotonic() - began)
        whole = client.chat.completions.create(**body)
    assert times[-1] - times[1] > 0.05 * (len(times) - 5)
    assert (whole.model, whole.choices[0].message.content) == ("stub-model", text)
    assert stub.requests[0]["messages"] == ASKED["messages"]
    assert {name: stub.requests[0][name] for name in ("seed", "stop", "max_tokens")} == {
        "seed": 7,
        "stop": ["\n"],
        "max_tokens": 24,
    }


def test_promoted_adapter_is_loaded_and_answers(tmp_path: Path) -> None:
    with VLLMStub(load_policy(EMBEDDED_POLICY)) as vllm:
        settings = Settings(
            home=tmp_path,
            policy=str(EMBEDDED_POLICY),
            completion_backend="openai_compatible",
            base_url=vllm.base_url,
            api_model=MODEL,
            load_adapters=True,
        )
        workspace = Workspace(settings)
        prepare(workspace)
        first = workspace.champions.policy()
        (tmp_path / "second" / ADAPTER).mkdir(parents=True)
        (tmp_path / "second" / ADAPTER / BASE_HASH).write_text(first.content_hash)
        with workspace.registry.run("second") as run:
            second = workspace.registry.register(
                "policy", tmp_path / "second", run=run, parent=first.label
            )
        with serve(settings) as web, open_client(web) as client:
            assert client.chat.completions.create(**ASKED).model == MODEL
            workspace.champions.promote("policy", second, reason="better", actor="test")
            assert client.chat.completions.create(**ASKED).model == "demo.policy@2"
    assert vllm.models == [MODEL, None, "demo.policy@2"]
    assert vllm.adapters["demo.policy@2"].endswith(ADAPTER)


def test_slow_reader_gets_the_whole_stream_and_holds_up_nobody(
    proxy: Web, stub: StubProvider
) -> None:
    body = ASKED | {"model": "stub-model", "stream": True}
    with open_client(proxy) as client:
        whole = client.chat.completions.create(**(body | {"stream": False}))
        text = ""
        for chunk in client.chat.completions.create(**body):
            text += chunk.choices[0].delta.content or ""
            time.sleep(0.05)
            quick = client.chat.completions.create(**(body | {"stream": False}))
            assert quick.choices[0].finish_reason == "stop"
    assert text == whole.choices[0].message.content


def test_provider_that_dies_is_a_502_or_ends_the_stream(proxy: Web, stub: StubProvider) -> None:
    body = ASKED | {"model": "stub-model"}
    with open_client(proxy) as client:
        stub.chances = ((1.0, Fault(kind="cut")),)
        with pytest.raises(openai.APIError, match="broke off"):
            list(client.chat.completions.create(**body, stream=True))
        stub.chances = ((1.0, Fault(kind="drop")),)
        for is_streamed in (True, False):
            with pytest.raises(openai.InternalServerError) as dead:
                client.chat.completions.create(**body, stream=is_streamed)
            assert dead.value.status_code == 502
        wrong = Fault(kind="status", status=401, message=f"not {KEY}", retry_after_ms=None)
        stub.chances = ((1.0, wrong),)
        with pytest.raises(openai.InternalServerError, match="not \\*\\*\\*"):
            client.chat.completions.create(**body)
        stub.repair()
        assert client.chat.completions.create(**body).choices[0].message.content


def test_answers_are_logged_and_take_feedback(local: Web) -> None:
    with open_client(local) as client:
        whole = client.chat.completions.create(**ASKED, metadata={"session_id": "s1"})
        stream = client.chat.completions.create(
            **(ASKED | {"seed": 1, "max_tokens": 200, "temperature": 2}), stream=True, user="ana"
        )
        left = next(iter(stream)).id
        stream.close()
    row = local.store.answers.get(whole.id)
    assert whole.usage is not None
    assert (row.session_id, row.version) == ("s1", "demo.policy@1")
    assert row.n_tokens == whole.usage.completion_tokens
    assert row.prompt is None
    assert row.latency_s > 0
    deadline = time.monotonic() + 120
    while True:
        with suppress(NotFound):
            row = local.store.answers.get(left)
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (row.session_id, row.finish_reason) == ("ana", "cancelled")
    assert row.n_tokens < 200
    with local.client(Role.ADMIN) as api:
        entry = api.post("/feedback", json={"kind": "thumbs", "value": 1, "answer_id": whole.id})
        assert entry.json()["model_version"] == "demo.policy@1"
        chart = api.get("/charts/production").json()
    assert {panel["y"]["label"] for panel in chart["panels"]} >= {"satisfaction", "latency p95"}


def test_answering_server_checks_that_its_policy_is_the_judged_one(local: Web) -> None:
    with open_client(local) as client:
        client.chat.completions.create(**ASKED)
    deadline = time.monotonic() + 120
    while (facts := HomeFacts.load(local.settings.home)) and facts.served is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert facts is not None
    assert facts.served is not None
    assert (facts.served.version, facts.served.state) == ("demo.policy@1", "as judged")
    assert facts.served.n_requests == 32


def test_hundred_streams_at_once_and_leaving_clients(proxy: Web, stub: StubProvider) -> None:
    stub.chunk_s = 0.02
    token = open_client(proxy).api_key

    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        body = ASKED | {"model": "stub-model", "seed": i}
        text = ""
        async for chunk in await client.chat.completions.create(**body, stream=True):
            text += chunk.choices[0].delta.content or ""
            if i % 10 == 9:  # leaves after the first piece
                break
        return text

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key=token, max_retries=0
        ) as client:
            return await asyncio.gather(*(ask(client, i) for i in range(100)))

    texts = asyncio.run(ask_all())
    assert len({text for i, text in enumerate(texts) if i % 10 != 9}) > 5
    assert all(texts[i] for i in range(100) if i % 10 != 9)


def chat(home: Path, typed: str, *arguments: str) -> str:
    result = CliRunner().invoke(
        app,
        ["chat", *arguments],
        env={"RLHF_HOME": str(home), "COLUMNS": "200"},
        input=typed,
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_terminal_chats_with_the_home(local: Web) -> None:
    output = chat(local.settings.home, f"{MOON}\n\nAgain?\n")
    assert output.startswith("demo.policy@1. /quit ends")
    with local.store.database.read_transaction() as connection:
        newest = select(answers.c.session_id).order_by(answers.c.created_at.desc()).limit(2)
        [second, first] = connection.execute(newest).scalars().all()
    assert second == first is not None


def test_terminal_prints_the_login_link_of_an_admin_that_it_makes(tmp_path: Path) -> None:
    environ = {"RLHF_HOME": str(tmp_path), "COLUMNS": "200"}
    printed = [
        CliRunner().invoke(app, [command], env=environ, input="").stderr
        for command in ("init", "chat", "chat")
    ]
    assert ["/login?token=" in text for text in printed] == [False, True, False]


def test_terminal_chats_with_a_server(local: Web) -> None:
    token = open_client(local).api_key
    output = chat(local.settings.home, f"{MOON}\n/quit\n", "--url", local.url, "--token", token)
    assert len(output.splitlines()) == 3
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:9 does not chat"):
        chat(local.settings.home, "", "--url", "http://127.0.0.1:9", "--token", token)
    with pytest.raises(PipelineError, match="needs a token"):
        chat(local.settings.home, "", "--url", local.url)
