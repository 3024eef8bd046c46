from pathlib import Path

from rlhf_pipeline.generate.completions import CallParams, CompletionResult, OpenAICompatibleBackend
from rlhf_pipeline.generate.completions.template import TemplateBackend
from rlhf_pipeline.generate.completions.text_generator import BackendTextGenerator
from rlhf_pipeline.generate.prompts import PromptParams, Report, generate
from rlhf_pipeline.store import Store
from tests.ledgers import temporary_ledger
from tests.providers.stub_provider import StubProvider


class Odd:
    """Fails on `bad`, says nothing to `empty`, and else its prompt and seed."""

    name, model_version = "odd", "odd-1"

    def complete(self, requests):
        for r in requests:
            if r.prompt == "bad":
                yield CompletionResult.failed("refused by the provider")
            else:
                yield CompletionResult(
                    text="" if r.prompt == "empty" else f"{r.prompt} {r.seed}", n_tokens=2
                )


def texts_of(backend):
    return BackendTextGenerator(backend, temporary_ledger())


def test_texts_keep_their_order_and_failures_are_empty():
    texts = texts_of(Odd())
    answers = texts.generate_texts(["one", "bad", "empty", "two"], seed=3)
    assert [text.partition(" ")[0] for text in answers] == ["one", "", "", "two"]
    assert texts.failures_ == {
        "refused by the provider": 1,
        "odd-1 sent an empty completion (finish reason stop). Ask it again with another seed or "
        "prompt.": 1,
    }
    assert texts.generate_texts(["one", "bad", "empty", "two"], seed=3) == answers
    assert texts.generate_texts(["one"], seed=4) != answers[:1]


def test_a_backend_writes_prompts():
    """The null backend writes nothing good, but prompts there are, and what is none is told."""
    report = Report()
    frame = generate(
        PromptParams(n=6, source="freeform"),
        day="2026-01-01",
        text_generator=texts_of(TemplateBackend()),
        report=report,
    )
    assert len(frame) == 6


def test_provider_texts_are_recorded_and_paid_once(tmp_path: Path) -> None:
    calls = CallParams(prompt_price=1, completion_price=1)
    with (
        Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store,
        StubProvider() as stub,
    ):
        store.migrate()
        texts = BackendTextGenerator(
            OpenAICompatibleBackend("stub-model", stub.base_url),
            ledger=store.generation,
            calls=calls,
        )
        answers = texts.generate_texts(["one", "two", "three"], seed=3)
        assert texts.generate_texts(["one", "two", "three"], seed=3) == answers
        assert stub.n_calls == 3
        [(by, spent)] = store.generation.sum_spending("asset")
        counted = stub.counters
    assert by == ("prompts",)
    assert (spent.n_calls, spent.n_prompt_tokens, spent.n_tokens) == (
        3,
        counted.n_prompt_tokens,
        counted.n_tokens,
    )
    assert spent.cost == (counted.n_prompt_tokens + counted.n_tokens) * 1000
