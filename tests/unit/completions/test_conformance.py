"""Every backend in the mapping keeps the promises of `completions/base.py`."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from rlhf_pipeline import completions
from rlhf_pipeline.completions import BACKENDS, CompletionBackend, CompletionRequest
from rlhf_pipeline.errors import BackendUnavailable
from tests.ledgers import complete
from tests.providers.stub_provider import StubProvider

NO_BACKEND = {
    "attempts",
    "base",
    "batch_work",
    "callbacks",
    "capabilities",
    "engine",
    "faults",
    "keys",
    "limits",
    "openai_batches",
    "owners",
    "redaction",
    "request_plan",
    "responses",
    "results",
    "text_generator",
    "workers",
}
KEY = SecretStr("sk-canary-5f1d")


def request(prompt: str = "Why?", **more: object) -> CompletionRequest:
    defaults = {
        "prompt_id": "p",
        "temperature": 1.0,
        "top_p": 0.9,
        "sample_index": 0,
        "seed": 7,
        "max_tokens": 12,
    }
    return CompletionRequest(prompt=prompt, **(defaults | more))  # type: ignore[arg-type]


REQUESTS = [
    request(prompt, seed=seed, sample_index=seed)
    for prompt in ("Why?", "Name three rivers of Europe.")
    for seed in range(4)
]


@pytest.fixture(params=sorted(BACKENDS))
def make(
    request: pytest.FixtureRequest, tiny_policy: Path
) -> Iterator[Callable[[], CompletionBackend]]:
    """A maker of fresh backends of one kind that work offline. A new backend needs a line here."""
    with StubProvider(api_key=KEY) as stub:
        makers: dict[str, Callable[[], CompletionBackend]] = {
            "template": BACKENDS["template"],
            "local": lambda: BACKENDS["local"](tiny_policy, "demo.policy@1"),
            "openai_compatible": lambda: BACKENDS["openai_compatible"](
                "stub-model", stub.base_url, KEY
            ),
            "anthropic": lambda: BACKENDS["anthropic"]("stub-model", stub.base_url, KEY),
        }
        yield makers[request.param]


@pytest.fixture
def backend(make: Callable[[], CompletionBackend]) -> CompletionBackend:
    return make()


def test_every_module_of_the_folder_is_in_the_mapping() -> None:
    modules = {m.name for m in pkgutil.iter_modules(completions.__path__)} - NO_BACKEND
    listed = {
        inspect.getmodule(backend).__name__.rsplit(".", 1)[-1] for backend in BACKENDS.values()
    }  # type: ignore[union-attr]
    assert modules == listed


def test_the_names_are_those_of_the_mapping() -> None:
    assert {name: backend.name for name, backend in BACKENDS.items()} == {
        name: name for name in BACKENDS
    }  # type: ignore[attr-defined]


def test_a_backend_names_its_model(backend: CompletionBackend) -> None:
    assert backend.model_version


def test_there_is_one_text_per_request_within_the_limit(backend: CompletionBackend) -> None:
    results = complete(backend, REQUESTS)
    assert len(results) == len(REQUESTS)
    for result in results:
        assert result.error is None
        assert result.finish_reason in ("stop", "length")
        assert result.n_prompt_tokens > 0
        assert 0 < result.n_tokens <= 12
        assert result.latency_ms >= 0
    assert len({r.text for r in results}) > 1


def test_a_batch_of_one_equals_a_batch_of_eight(backend: CompletionBackend) -> None:
    together = [r.text for r in complete(backend, REQUESTS)]
    alone = [complete(backend, [r])[0].text for r in REQUESTS]
    assert together == alone


def test_order_follows_the_requests(backend: CompletionBackend) -> None:
    forward = [r.text for r in complete(backend, REQUESTS)]
    backward = [r.text for r in complete(backend, REQUESTS[::-1])]
    assert forward == backward[::-1]


def test_a_fresh_backend_repeats_itself(make: Callable[[], CompletionBackend]) -> None:
    assert [r.text for r in complete(make(), REQUESTS)] == [
        r.text for r in complete(make(), REQUESTS)
    ]


def test_temperature_0_does_not_look_at_the_seed(backend: CompletionBackend) -> None:
    texts = {
        r.text
        for r in complete(backend, [request(temperature=0.0, seed=seed) for seed in range(3)])
    }
    assert len(texts) == 1


def test_no_requests_give_no_results(backend: CompletionBackend) -> None:
    assert complete(backend, []) == []


def test_no_secret_stands_in_the_representation(backend: CompletionBackend) -> None:
    complete(backend, REQUESTS[:1])
    assert KEY.get_secret_value() not in repr(backend) + str(backend)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(
            lambda folder: BACKENDS["local"](folder / "gone", "demo.policy@1"), id="local"
        ),
        pytest.param(
            lambda folder: BACKENDS["openai_compatible"]("m", "http://127.0.0.1:9/v1"),
            id="openai_compatible",
        ),
        pytest.param(
            lambda folder: BACKENDS["anthropic"]("m", "http://127.0.0.1:9/v1"),
            id="anthropic",
        ),
    ],
)
def test_what_cannot_be_reached_is_unavailable(
    broken: Callable[[Path], CompletionBackend], tmp_path: Path
) -> None:
    backend = broken(tmp_path)
    with pytest.raises(BackendUnavailable):
        complete(backend, REQUESTS, max_attempts=1)
