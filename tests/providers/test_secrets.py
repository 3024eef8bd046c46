"""Keys and secrets of an address stand in no file, row, log and message."""

import base64
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.errors import BackendUnavailable, ConfigurationError
from rlhf_pipeline.generate.completions import HostedBackend
from rlhf_pipeline.store import Store
from tests.providers.generation_runs import BACKENDS, KEY, ask
from tests.providers.stub_provider import Fault, StubProvider


def collect_output(store: Store, tmp_path: Path, *more: str) -> str:
    store.close()
    files = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    return "".join([*more, *files])


@pytest.mark.parametrize("around", ["{}\r\n", " {}", "{}\t\n\n"])
def test_white_space_around_a_key_is_removed(store: Store, tmp_path: Path, around: str) -> None:
    for kind in BACKENDS.values():
        with StubProvider(api_key=SecretStr(KEY)) as stub:
            backend = kind("stub-model", stub.base_url, SecretStr(around.format(KEY)))
            assert ask(store.generation, backend, n=2).frame["error"].isna().all()
    assert KEY not in collect_output(store, tmp_path)


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY} x", f"{KEY}é", f"{KEY}\x00"])
def test_invalid_key_is_refused_without_showing_it(key: str) -> None:
    for kind in BACKENDS.values():
        with pytest.raises(ConfigurationError, match="RLHF_API_KEY") as refused:
            kind("m", "http://here/v1", SecretStr(key))
        assert KEY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "secret_part",
    [
        "Invalid URL (POST /v1/chat/completions?key=canary-qu%40ery&v=1)",
        "Cannot POST /v1/messages?key=canary-qu@ery&v=1",
        "got https://me:canary-pa%2Fss@here/v1",
        "got me and canary-pa/ss",
        f"got Basic {base64.b64encode(b'me:canary-pa/ss').decode()}",
    ],
)
def test_url_secret_repeated_by_the_provider_is_redacted(
    store: Store, tmp_path: Path, make: Callable[..., HostedBackend], secret_part: str
) -> None:
    refusal = Fault(kind="status", status=404, message=f"{secret_part} (1 of me)")
    with StubProvider(faults=[refusal]) as stub:
        backend = make(stub)
        with_secrets = (
            stub.base_url.replace("http://", "http://me:canary-pa%2Fss@")
            + "?key=canary-qu%40ery&v=1"
        )
        backend.base_url = with_secrets  # type: ignore[attr-defined]
        with pytest.raises(BackendUnavailable, match=r"\*\*\*.*\(1 of me\)") as refused:
            ask(store.generation, backend, n=2, concurrency=1)
    output = collect_output(store, tmp_path, str(refused.value), repr(backend))
    assert "canary" not in output
    assert base64.b64encode(b"me:canary-pa/ss").decode() not in output


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_logs_of_all_levels_hide_url_secrets(
    store: Store, make: Callable[..., HostedBackend], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with StubProvider(faults=[None, Fault(kind="drop"), Fault(kind="status", status=500)]) as stub:
        for name in ("", "httpx2", "httpcore2", "httpcore", "openai"):
            caplog.set_level(logging.DEBUG, logger=name)
        backend = make(stub)
        backend.base_url = (  # type: ignore[attr-defined]
            stub.base_url.replace("http://", "http://me:canary-pa%40ss@") + "?key=canary-query"
        )
        outcome = ask(store.generation, backend, n=1, concurrency=1, stream=stream)
        assert stub.n_calls == 4
    assert outcome.frame["error"].isna().all()
    assert "HTTP Request: POST http://127.0.0.1" in caplog.text, "requests are logged"
    output = (
        caplog.text
        + "".join(map(repr, caplog.records))
        + repr([record.args for record in caplog.records])
    )
    assert [secret for secret in ("canary", "pa@ss", KEY) if secret in output] == []
    basic = "Basic " + base64.b64encode(b"me:canary-pa@ss").decode()
    assert {(path.partition("?")[2], authorization) for path, authorization in stub.shown} == {
        ("key=canary-query", basic)
    }, "both are sent"
