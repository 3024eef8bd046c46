"""The STUB provider itself: what it answers, what it counts, what it breaks."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from pydantic import SecretStr

from tests.providers.stub_provider import Fault, StubProvider


def ask(stub: StubProvider, **more: Any) -> tuple[int, Any, dict[str, str]]:
    body = {
        "model": "stub-model",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "seed": 1,
        **more,
    }
    request = urllib.request.Request(
        stub.base_url + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer), dict(answer.headers)


def text(answer: tuple[int, Any, dict[str, str]]) -> str:
    return str(answer[1]["choices"][0]["message"]["content"])


def test_the_same_request_gets_the_same_text_and_another_seed_another() -> None:
    with StubProvider() as stub:
        assert text(ask(stub)) == text(ask(stub))
        assert text(ask(stub)) != text(ask(stub, seed=2))
        assert text(ask(stub, temperature=0)) == text(ask(stub, temperature=0, seed=2))
        assert stub.n_calls == 6


def test_max_tokens_cuts_and_says_so() -> None:
    with StubProvider() as stub:
        _, body, _ = ask(stub, max_tokens=3)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


def test_faults_come_once_each_in_order() -> None:
    with StubProvider(
        faults=[Fault(kind="status", status=429, retry_after_ms=50), Fault(kind="refusal")]
    ) as stub:
        status, body, headers = ask(stub)
        assert (status, headers["retry-after-ms"], body["error"]["type"]) == (429, "50", "stub")
        assert ask(stub)[1]["choices"][0]["message"]["refusal"]
        assert text(ask(stub))


def test_a_wrong_key_model_or_path_is_refused() -> None:
    with StubProvider(api_key=SecretStr("secret")) as stub:
        assert ask(stub)[0] == 401
    with StubProvider() as stub:
        assert ask(stub, model="other")[0] == 404
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(stub.base_url + "/nothing")


def test_it_serves_on_loopback_and_only_inside_its_block() -> None:
    with StubProvider() as stub:
        assert stub.base_url.startswith("http://127.0.0.1:")
    with pytest.raises(RuntimeError, match="inside"):
        stub.base_url  # noqa: B018


def test_only_who_had_read_a_refusal_can_be_early() -> None:
    import httpx2

    body = {"model": "stub-model", "messages": [{"role": "user", "content": "Now?"}]}
    wait = Fault(kind="status", status=429, retry_after_ms=3_000)
    now = [100.0]
    with (
        StubProvider(faults=[wait, wait], monotonic=lambda: now[0]) as stub,
        httpx2.Client(base_url=stub.base_url) as one,
        httpx2.Client(base_url=stub.base_url) as other,
    ):
        assert one.post("/chat/completions", json=body).status_code == 429
        assert other.post("/chat/completions", json=body).status_code == 429, (
            "who knows nothing of a refusal is not early"
        )
        assert stub.counters.n_early == 0
        assert one.post("/chat/completions", json=body).status_code == 200
        assert stub.counters.n_early == 1
        # over another connection of the same client
        with httpx2.Client(base_url=stub.base_url, cookies=one.cookies) as fresh:
            assert fresh.post("/chat/completions", json=body).status_code == 200
        assert stub.counters.n_early == 2
        now[0] += 3.1
        assert one.post("/chat/completions", json=body).status_code == 200
        assert stub.counters.n_early == 2


def test_a_client_without_cookies_is_early_on_the_connection_that_told_it() -> None:
    body = json.dumps({"model": "stub-model", "messages": [{"role": "user", "content": "Now?"}]})
    with StubProvider(faults=[Fault(kind="status", status=429, retry_after_ms=60_000)]) as stub:
        connection = http.client.HTTPConnection(
            stub.base_url.removeprefix("http://").removesuffix("/v1")
        )
        for status in (429, 200):
            connection.request("POST", "/v1/chat/completions", body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
        assert stub.counters.n_early == 1
