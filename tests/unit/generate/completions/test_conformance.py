"""Every backend in the mapping keeps the promises of `completions/base.py`."""

import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.errors import BackendUnavailable
from rlhf_pipeline.generate import completions
from rlhf_pipeline.generate.completions import BACKENDS, CompletionBackend
from rlhf_pipeline.simulation.testing import check_backend
from rlhf_pipeline.simulation.testing.generation import build_request
from tests.ledgers import complete
from tests.providers.stub_provider import StubProvider

NO_BACKEND = {
    "adapter_server",
    "answers",
    "attempts",
    "base",
    "engine",
    "faults",
    "hosted_lane",
    "http_backend",
    "limits",
    "local_lane",
    "redaction",
    "request_plan",
    "results",
    "served_readings",
    "server_calls",
    "text_generator",
    "work",
}
KEY = SecretStr("sk-canary-5f1d")


@pytest.fixture(params=sorted(BACKENDS))
def make(
    request: pytest.FixtureRequest, tiny_policy: Path
) -> Iterator[Callable[[], CompletionBackend]]:
    """A maker of offline backends. One whose constructor takes arguments needs a line here."""
    with StubProvider(api_key=KEY) as stub:
        makers: dict[str, Callable[[], CompletionBackend]] = {
            "template": BACKENDS["template"],
            "local": lambda: BACKENDS["local"](tiny_policy, "demo.policy@1"),
            "openai_compatible": lambda: BACKENDS["openai_compatible"](
                "stub-model", stub.base_url, KEY
            ),
            "anthropic": lambda: BACKENDS["anthropic"]("stub-model", stub.base_url, KEY),
        }
        yield makers.get(request.param, BACKENDS[request.param])


def test_every_module_of_the_folder_is_in_the_mapping() -> None:
    modules = {m.name for m in pkgutil.iter_modules(completions.__path__)} - NO_BACKEND
    listed = {backend.__module__.rpartition(".") for backend in BACKENDS.values()}
    assert modules == {name for package, _, name in listed if package == completions.__name__}


def test_backend_names_are_those_of_the_mapping() -> None:
    assert {name: backend.name for name, backend in BACKENDS.items()} == {
        name: name for name in BACKENDS
    }  # type: ignore[attr-defined]


def test_backend_conforms_to_the_protocol(make: Callable[[], CompletionBackend]) -> None:
    check_backend(make, secret=KEY.get_secret_value())


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
def test_unreachable_backend_is_unavailable(
    broken: Callable[[Path], CompletionBackend], tmp_path: Path
) -> None:
    backend = broken(tmp_path)
    with pytest.raises(BackendUnavailable):
        complete(backend, [build_request()], max_attempts=1)
