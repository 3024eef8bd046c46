"""`POST /api/v1/completions:stream`: a completion heard while the provider makes it, and kept as it
was heard.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.predictions.completer import AT_MOST
from rlhf_pipeline.web.server import WebServer
from tests.providers.stub_provider import Fault, StubProvider
from tests.web.conftest import UNCACHED, ShiftedClock, Web
from tests.web.test_pages import MORE_PAGES, pages_of

KEY = "sk-canary-90ab"
ASKED = {"prompt": "Name a river and say where it ends.", "max_tokens": 40}


@pytest.fixture
def stub() -> Iterator[StubProvider]:
    with StubProvider(api_key=SecretStr(KEY)) as stub:
        yield stub


@pytest.fixture
def web(stub: StubProvider, tmp_path: Path) -> Iterator[Web]:
    settings = Settings(
        home=tmp_path,
        completion_backend="openai_compatible",
        base_url=stub.base_url,
        api_key=SecretStr(KEY),
        api_model="stub-model",
    )
    with Store.open(settings.store_url) as store:
        store.migrate()
        with WebServer(
            create_app(settings, store, has_pages=False, cache_times=UNCACHED)
        ) as server:
            yield Web(store, settings, server.url, ShiftedClock())


def events(
    client: httpx.Client, body: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Name, data and time of each event."""
    with client.stream("POST", "/completions:stream", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: ")), time.monotonic()


def test_stream_starts_before_the_provider_finishes(web: Web, stub: StubProvider) -> None:
    stub.chunk_s = 0.05
    with web.client(Role.ENGINEER) as client:
        *pieces, (name, whole, ended) = events(client, ASKED)
        assert {name for name, _, _ in pieces} == {"piece"}
        assert len(pieces) > 5
        assert ended - pieces[0][2] > 0.05 * (len(pieces) - 2), (
            "the first was heard long before the last was made"
        )
        joined = "".join(data["text"] for _, data, _ in pieces)
        assert (name, whole["text"]) == ("completion", joined)
        [run] = web.store.generation.list_runs()
        assert (run.asset, run.spent.n_calls) == ("web", 1)
        assert json.loads(next(iter(_read_cache(web).values())))["text"] == joined
        again = list(events(client, ASKED))
    assert [name for name, _, _ in again] == ["piece", "completion"]
    assert again[-1][1]["text"] == joined
    assert stub.n_calls == 1, "told again from what is kept"


def _read_cache(web: Web) -> dict[str, str]:
    store = web.store
    [run] = store.generation.list_runs()
    return store.completions_cache.get_many(
        [call["cache_key"] for call in store.generation.read_calls(run.run_id)]
    )


def test_broken_stream_restarts_for_the_client(web: Web, stub: StubProvider) -> None:
    stub.chances = [(1.0, Fault(kind="cut"))]
    pieces: list[str] = []
    with web.client(Role.ENGINEER) as client:
        for name, data, _ in events(client, ASKED):
            if name == "again":
                stub.chances = []
                pieces.clear()
            elif name == "piece":
                pieces.append(data["text"])
            else:
                assert (name, data["text"]) == ("completion", "".join(pieces))
    assert stub.n_calls >= 2


def test_failed_stream_ends_with_its_reason_without_the_key(web: Web, stub: StubProvider) -> None:
    stub.chances = [(1.0, Fault(kind="refusal"))]
    with web.client(Role.ENGINEER) as client:
        [(name, data, _)] = [event for event in events(client, ASKED) if event[0] != "piece"]
        assert name == "failed"
        assert "refused" in data["error"]
        stub.chances = [
            (
                1.0,
                Fault(
                    kind="status",
                    status=401,
                    message=f"Incorrect API key provided: {KEY}",
                    retry_after_ms=None,
                ),
            )
        ]
        [(name, data, _)] = events(client, ASKED | {"seed": 1})
    assert name == "failed"
    assert "RLHF_API_KEY" in data["error"]
    assert KEY not in data["error"]


def test_pages_hide_a_key_repeated_by_the_provider(web: Web, stub: StubProvider) -> None:
    stub.add_faults(
        [Fault(kind="status", status=400, message=f"the key {KEY} may not", retry_after_ms=None)]
    )
    with web.client(Role.ENGINEER) as client:
        [(name, data, _)] = events(client, ASKED)
    assert (name, "***" in data["error"]) == ("failed", True), "the STUB did repeat it"
    [comparison_id] = web.publish(1, completion_a=f"It says {data['error']}")
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        paged = Web(web.store, web.settings, server.url, web.clock)
        browser = paged.browser(paged.add(Role.ADMIN, Role.ENGINEER, Role.CURATOR, Role.ANNOTATOR))
        paths = [*pages_of(web.settings, web.store), *MORE_PAGES, f"/comparisons/{comparison_id}"]
        pages = {
            path: browser.get(f"{server.url}{path}", follow_redirects=True).text for path in paths
        }
    assert len(pages) > 15
    assert [path for path, page in pages.items() if KEY in page] == []


def test_streams_are_limited_and_further_ones_get_retry_after(web: Web, stub: StubProvider) -> None:
    stub.latency_s = 1.5
    with web.client(Role.ENGINEER) as client:
        open_ = [
            client.stream("POST", "/completions:stream", json=ASKED | {"seed": seed})
            for seed in range(AT_MOST)
        ]
        for stream in open_:
            assert stream.__enter__().status_code == 200
        refused = client.post("/completions:stream", json=ASKED | {"seed": 99})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        for stream in open_:
            stream.__exit__(None, None, None)  # who leaves does not end what is paid for
        deadline = time.monotonic() + 20
        while (states := [run.states for run in web.store.generation.list_runs()]) != [
            {"succeeded": 1}
        ] * AT_MOST:
            assert time.monotonic() < deadline, states
            time.sleep(0.1)


def test_stream_refuses_missing_permission_and_invalid_input(web: Web, stub: StubProvider) -> None:
    with web.client(Role.ANNOTATOR) as client:
        assert client.post("/completions:stream", json=ASKED).status_code == 403
    with web.client(Role.ENGINEER) as client:
        for wrong in ({"prompt": " "}, ASKED | {"temperature": 3}, ASKED | {"api_key": KEY}):
            assert client.post("/completions:stream", json=wrong).status_code == 422
    assert stub.n_calls == 0
