from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rlhf_pipeline.completions import CompletionResult, OpenAICompatibleBackend, default_call_params
from rlhf_pipeline.completions.template import TemplateBackend
from rlhf_pipeline.completions.text_generator import BackendTextGenerator
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import BackendUnavailable, ConfigurationError
from rlhf_pipeline.prompts import PromptParams, Report, generate
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


def test_texts_come_in_the_order_asked_and_a_failure_is_no_text():
    texts = texts_of(Odd())
    found = texts.generate_texts(["one", "bad", "empty", "two"], seed=3)
    assert [text.partition(" ")[0] for text in found] == ["one", "", "", "two"]
    assert texts.failures_ == {
        "refused by the provider": 1,
        "The completion is empty (finish reason stop).": 1,
    }
    assert texts.generate_texts(["one", "bad", "empty", "two"], seed=3) == found
    assert texts.generate_texts(["one"], seed=4) != found[:1]


def test_two_completions_of_a_prompt_differ_or_there_are_none():
    found = texts_of(Odd()).complete_twice(["one", "bad", "empty"], seed=1)
    assert found[0][0] != found[0][1]
    assert found[1:] == [None, None]

    class Same(Odd):
        def complete(self, requests):
            yield from (CompletionResult(text="same", n_tokens=1) for _ in requests)

    assert texts_of(Same()).complete_twice(["one"], seed=1) == [None]


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


def test_what_this_machine_writes_is_in_the_ledger_and_written_once(tmp_path: Path) -> None:
    class Counted(Odd):
        n = 0

        def complete(self, requests):
            self.n += len(requests)
            yield from super().complete(requests)

    backend = Counted()
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        texts = BackendTextGenerator(backend, ledger=store.generation)
        made = texts.generate_texts(["one", "two", "three"], seed=3)
        assert made == texts_of(Odd()).generate_texts(["one", "two", "three"], seed=3)
        assert texts.generate_texts(["one", "two", "three"], seed=3) == made
        [(by, spent)] = store.generation.sum_spending("asset", "model")
        assert (by, spent.n_calls, backend.n) == (("prompts", "odd-1"), 3, 3)
        store.completions_cache.prune(unused_since=datetime.now(UTC) + timedelta(days=1))
        assert texts.generate_texts(["one", "two", "three"], seed=3) == made, (
            "what was taken out of the cache is made again"
        )


def test_what_a_provider_writes_is_in_the_ledger_and_paid_for_once(tmp_path: Path) -> None:
    calls = default_call_params(Settings(prompt_price=1, completion_price=1))
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
        made = texts.generate_texts(["one", "two", "three"], seed=3)
        assert texts.generate_texts(["one", "two", "three"], seed=3) == made
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


def test_what_a_provider_writes_keeps_to_the_days_budget_of_the_settings(tmp_path: Path) -> None:
    calls = default_call_params(Settings(prompt_price=1, completion_price=1, budget_per_day=0.0005))
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
        made = texts.generate_texts([f"Number {i}" for i in range(20)], seed=3)
        assert 0 < stub.n_calls < 20
    assert sum(text == "" for text in made) == 20 - stub.n_calls
    assert all("the budget of this day" in reason for reason in texts.failures_)
    with pytest.raises(ConfigurationError, match="needs prices"):
        BackendTextGenerator(
            OpenAICompatibleBackend("m", "http://127.0.0.1:9/v1"),
            ledger=store.generation,
            calls=default_call_params(Settings(budget_per_day=1)),
        ).generate_texts(["one"], seed=1)


def test_texts_that_failed_with_their_provider_are_asked_for_again_once_it_is_mended(
    tmp_path: Path,
) -> None:
    with (
        Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store,
        StubProvider(model="other") as stub,
    ):
        store.migrate()
        texts = BackendTextGenerator(
            OpenAICompatibleBackend("stub-model", stub.base_url), ledger=store.generation
        )
        with pytest.raises(BackendUnavailable, match="RLHF_API_MODEL"):
            texts.generate_texts(["one", "two"], seed=3)
        stub.repair()
        assert all(texts.generate_texts(["one", "two"], seed=3))
