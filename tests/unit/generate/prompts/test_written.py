"""What a text generator may write instead of a prompt, in every source that asks one."""

import pytest

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.generate.prompts import Report, generate, generate_with
from rlhf_pipeline.generate.prompts.distilabel import DistilabelGenerator
from rlhf_pipeline.generate.prompts.evolution import JudgedDifficulty
from rlhf_pipeline.generate.prompts.freeform import FreeformGenerator
from rlhf_pipeline.generate.prompts.generated_texts import ask, find_prompt_fault
from rlhf_pipeline.generate.prompts.parameters import SourceParams

DAY = "2026-01-01"
NO_PROMPTS = {
    "": "nothing was written",
    "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>": "a web page was written",
    "<html>\n<head>": "a web page was written",
    '{"error": {"message": "overloaded"}}': "an error message was written",
    "caf\ufffd au lait": "undecodable bytes",
    "%%% 123 ###": "contains no word",
    "I\u2019m sorry, but I can't help with that.": "talks about the prompt or refuses",
    "x" * 4001: "4,001 characters were written",
}


class Says:
    def __init__(self, text):
        self.text = text

    def generate_texts(self, instructions, *, seed):
        return [self.text for _ in instructions]


@pytest.mark.parametrize("text", NO_PROMPTS)
@pytest.mark.parametrize("source", ["freeform", "distilabel"])
def test_an_invalid_text_never_becomes_a_prompt(source, text):
    class Task:
        def process(self, inputs):
            yield [{**row, "instructions": [text] if text else [""]} for row in inputs]

    report, params = Report(), SourceParams(n=3, source=source)
    generator = (
        FreeformGenerator(None, Says(text))
        if source == "freeform"
        else DistilabelGenerator(task=Task())
    )
    with pytest.raises(
        PromptError,
        match=r"has 0 unused new prompts, 3 were asked for.*the first: text written for the "
        r"instruction",
    ):
        generate_with(generator, params, day=DAY, report=report)
    assert set(report.n_rejected) == {"written"}
    assert NO_PROMPTS[text] in report.rejections[0].reason


@pytest.mark.parametrize("answer", NO_PROMPTS)
def test_evolution_continues_without_written_mutations(answer):
    class Judges(Says):
        def generate_texts(self, instructions, *, seed):
            return [
                "5" if "number alone" in instruction else self.text for instruction in instructions
            ]

    report = Report()
    frame = generate(
        SourceParams(n=6, source="evolution", population=3, generations=2),
        day=DAY,
        text_generator=Judges(answer),
        report=report,
    )
    assert len(frame) == 6
    assert report.n_rejected["mutation"] == 2 * 3 * 6
    assert all(NO_PROMPTS[answer] in r.reason for r in report.rejections if r.rule == "mutation")


@pytest.mark.parametrize(
    "answer",
    [
        "Name a tree.",
        "\u5199\u4e00\u9996\u8bd7",
        "Explain <b> and <html lang> in HTML.",
        "What does {x: 1} mean?",
    ],
)
def test_valid_prompts_are_left_unchanged(answer):
    assert find_prompt_fault(answer) is None


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_wrong_number_of_texts_is_an_error_with_a_fix(n):
    class Miscounts:
        def generate_texts(self, instructions, *, seed):
            return ["Name a tree."] * n

    with pytest.raises(PromptError, match=f"Miscounts gave {n} texts for 2 instructions.*one each"):
        ask(Miscounts(), ["a", "b"], seed=0)
    with pytest.raises(PromptError, match="Miscounts gave"):
        JudgedDifficulty(Miscounts()).scores(["a", "b"], seed=0)
