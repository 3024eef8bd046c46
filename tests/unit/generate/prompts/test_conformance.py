"""Every generator keeps the promises, whoever brought it."""

import importlib.util
import json
from importlib.metadata import entry_points

import pytest

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.frames import PROMPTS
from rlhf_pipeline.core.records import Category, Difficulty
from rlhf_pipeline.generate.prompts import GENERATORS, PromptParams, Report, generate_with
from rlhf_pipeline.generate.prompts.distilabel import DistilabelGenerator
from rlhf_pipeline.simulation.testing import check_generator
from rlhf_pipeline.simulation.testing.generation import DAY


class Numbered:
    """A text generator that writes five numbered prompts, others at every call."""

    def generate_texts(self, instructions, *, seed):
        return [
            "\n".join(f"{k}. Prompt {seed % 99_991}-{i}-{k}, please." for k in range(1, 6))
            for i, _ in enumerate(instructions)
        ]


class Instructed:
    """Rows as distilabel's SelfInstruct gives them (1.5.3), without it."""

    calls = 0

    def process(self, inputs):
        self.calls += 1
        yield [
            {
                **row,
                "instructions": [f"{k}. Prompt {self.calls}-{i}-{k}." for k in range(5)],
                "model_name": "m",
            }
            for i, row in enumerate(inputs)
        ]


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "prompts.jsonl"
    rows = [
        {"text": f"Question {i} of {c}, {d}?", "category": c, "difficulty": d}
        for i in range(30)
        for c in Category
        for d in Difficulty
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def maker(name, prompts_file):
    """A function that makes the generator afresh."""
    if name == "distilabel":
        return lambda: DistilabelGenerator(task=Instructed())
    writer = Numbered() if name == "freeform by a text generator" else None
    return lambda: GENERATORS[name.partition(" ")[0]](
        source_file=prompts_file if name == "dataset" else None, text_generator=writer
    )


BUILT_IN = [
    "templates",
    "dataset",
    "freeform",
    "freeform by a text generator",
    "evolution",
    "distilabel",
]
INSTALLED = sorted(point.name for point in entry_points(group="rlhf_pipeline.prompts"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_generator_conforms_to_the_protocol(name, prompts_file):
    check_generator(maker(name, prompts_file), has_difficulties=name != "freeform")


def test_every_generator_is_tested():
    assert {name.partition(" ")[0] for name in BUILT_IN} | set(INSTALLED) == set(GENERATORS)


def test_without_distilabel_the_error_names_the_fix(
    prompts_file,
):
    if importlib.util.find_spec("distilabel"):
        pytest.skip("distilabel is installed")
    with pytest.raises(
        PromptError, match=r"pip install distilabel requests.*freeform or evolution"
    ):
        generate_with(
            GENERATORS["distilabel"](text_generator=Numbered()), PromptParams(n=1), day=DAY
        )
    assert list(
        generate_with(GENERATORS["freeform"](), PromptParams(n=1), day=DAY).columns
    ) == list(PROMPTS.columns)


def test_distilabel_task_conforms_to_the_protocol():
    pytest.importorskip("distilabel")
    check_generator(lambda: DistilabelGenerator(text_generator=Numbered()))
    with pytest.raises(PromptError, match="needs a text generator"):
        generate_with(DistilabelGenerator(), PromptParams(n=1), day=DAY)


def test_empty_distilabel_row_is_rejected_alone():
    class Forgetful(Instructed):
        def process(self, inputs):
            yield from (
                [{**row, "instructions": []} if i % 2 else row for i, row in enumerate(batch)]
                for batch in super().process(inputs)
            )

    report = Report()
    assert (
        len(
            generate_with(
                DistilabelGenerator(task=Forgetful()), PromptParams(n=40), day=DAY, report=report
            )
        )
        == 40
    )
    assert report.n_rejected["written"] > 0
    assert "distilabel gave no instructions" in report.rejections[0].reason
