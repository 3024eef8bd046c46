from rlhf_pipeline.completions import CompletionResult
from rlhf_pipeline.completions.template import TemplateBackend
from rlhf_pipeline.completions.texts import BackendTexts
from rlhf_pipeline.prompts import PromptParams, Report, generate


class Odd:
    """Fails on `bad`, says nothing to `empty`, and else its prompt and seed."""

    name, model_version = "odd", "odd-1"

    def complete(self, requests):
        for r in requests:
            if r.prompt == "bad":
                yield CompletionResult.failed("refused by the provider")
            else:
                yield CompletionResult(text="" if r.prompt == "empty" else f"{r.prompt} {r.seed}", n_tokens=2)


def test_texts_come_in_the_order_asked_and_a_failure_is_no_text():
    texts = BackendTexts(Odd())
    found = texts.generate_texts(["one", "bad", "empty", "two"], seed=3)
    assert [text.partition(" ")[0] for text in found] == ["one", "", "", "two"]
    assert texts.failures_ == {"refused by the provider": 1}
    assert texts.generate_texts(["one", "bad", "empty", "two"], seed=3) == found
    assert texts.generate_texts(["one"], seed=4) != found[:1]


def test_two_completions_of_a_prompt_differ_or_there_are_none():
    found = BackendTexts(Odd()).complete_twice(["one", "bad", "empty"], seed=1)
    assert found[0][0] != found[0][1]
    assert found[1:] == [None, None]

    class Same(Odd):
        def complete(self, requests):
            yield from (CompletionResult(text="same", n_tokens=1) for _ in requests)

    assert BackendTexts(Same()).complete_twice(["one"], seed=1) == [None]


def test_a_backend_writes_prompts():
    """The null backend writes nothing good, but prompts there are, and what is none is told."""
    report = Report()
    frame = generate(PromptParams(n=6, source="freeform"), day="2026-01-01", text_generator=BackendTexts(TemplateBackend()), report=report)
    assert len(frame) == 6
