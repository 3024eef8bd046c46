"""The OpenAI-compatible backend against the STUB: faults, retries, and a key that nobody sees."""

import traceback

import pandas as pd
import pytest
from pydantic import SecretStr

from rlhf_pipeline.completions import (
    CompletionParams,
    CompletionRequest,
    OpenAICompatibleBackend,
)
from rlhf_pipeline.completions.base import CompletionResult
from rlhf_pipeline.errors import BackendUnavailable
from tests.ledgers import complete, complete_frame
from tests.providers.stub_provider import Fault, StubFaultKind, StubProvider

KEY = SecretStr("sk-canary-5f1d")


def request(index: int = 0) -> CompletionRequest:
    return CompletionRequest(
        prompt_id="p",
        prompt=f"Prompt {index}",
        temperature=0.7,
        top_p=0.9,
        sample_index=index,
        seed=index,
        max_tokens=32,
    )


def backend(stub: StubProvider, **more: object) -> OpenAICompatibleBackend:
    return OpenAICompatibleBackend(
        "stub-model",
        stub.base_url,
        KEY,
        **more,  # type: ignore[arg-type]
    )


def second_of_two(stub: StubProvider, **more: object) -> CompletionResult:
    """The second result of a backend that has answered once."""
    asked = backend(stub)
    assert complete(asked, [request()])[0].error is None
    return complete(asked, [request(1)], **more)[0]


def test_the_parameters_of_every_sample_are_sent(prompts: pd.DataFrame) -> None:
    with StubProvider() as stub:
        frame = complete_frame(
            prompts,
            backend(stub),
            CompletionParams(k=2, temperatures=[0.3, 1.2], top_ps=[0.8], max_new_tokens=20),
        )
    assert stub.n_calls == 10
    sent = {
        (r["messages"][0]["content"], r["temperature"], r["top_p"], r["seed"], r["max_tokens"])
        for r in stub.requests
    }
    texts = frame["prompt_id"].map(prompts.set_index("prompt_id")["text"])
    assert sent == set(
        zip(texts, frame["temperature"], frame["top_p"], frame["seed"], [20] * 10, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("content_filter", "content filter"),
        ("refusal", "refused: I will not"),
        ("empty", "empty completion"),
        ("no_choices", "no choice"),
    ],
)
def test_an_answer_without_a_completion_is_an_error_of_its_row(
    kind: StubFaultKind, told: str
) -> None:
    with StubProvider(faults=[Fault(kind=kind)]) as stub:
        result = complete(backend(stub), [request()])[0]
    assert result.text is None
    assert told in str(result.error)
    assert stub.n_calls == 1, "it would be refused again"


@pytest.mark.parametrize("kind", ["html", "broken_json", "foreign_json", "drop"])
def test_an_answer_that_is_no_chat_completion(kind: StubFaultKind) -> None:
    with (
        StubProvider(faults=[Fault(kind=kind)]) as stub,
        pytest.raises(BackendUnavailable, match="base_url"),
    ):
        complete(backend(stub), [request()], max_attempts=1)[0]
    with StubProvider(faults=[None, Fault(kind=kind)]) as stub:
        assert stub.base_url in str(second_of_two(stub, max_attempts=1).error)


def test_a_refused_key_names_the_setting_and_stays_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with (
        StubProvider(api_key=SecretStr("another")) as stub,
        pytest.raises(BackendUnavailable, match="RLHF_API_KEY") as raised,
    ):
        complete(backend(stub), [request(i) for i in range(40)])
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + caplog.text
    assert KEY.get_secret_value() not in shown
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert stub.n_calls < 40, "the rest is not asked for"


def test_an_unknown_model_names_the_setting() -> None:
    with (
        StubProvider(model="other") as stub,
        pytest.raises(BackendUnavailable, match="RLHF_API_MODEL"),
    ):
        complete(backend(stub), [request()])


def test_a_slow_server_is_timed_out() -> None:
    with StubProvider() as stub:
        asked = backend(stub, timeout_s=2)
        assert complete(asked, [request()])[0].error is None
        stub.latency_s = 30
        assert "no answer in time" in str(complete(asked, [request(1)], max_attempts=1)[0].error)
