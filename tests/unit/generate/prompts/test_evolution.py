import json
import re

import numpy as np
import pytest

from rlhf_pipeline.generate.prompts import Report, generate, generate_with, is_right
from rlhf_pipeline.generate.prompts.base import Draft
from rlhf_pipeline.generate.prompts.evolution import EvolutionGenerator, JudgedDifficulty
from rlhf_pipeline.generate.prompts.mutations import Parent, RuleViolation, WrittenMutations
from rlhf_pipeline.generate.prompts.near_duplicates import jaccard, shingles
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.simulation.testing.generation import DAY
from tests.unit.generate.prompts.words import WORDS

FEW = SourceParams(
    n=24,
    source="evolution",
    library="all",
    population=12,
    categories={"coding": 1, "safety": 1},
    seed=2,
)


class Writer:
    """Makes each prompt it is asked to change longer, and grades by length."""

    def generate_texts(self, instructions, *, seed):
        rng = np.random.default_rng(seed)
        return [self._answer(instruction, rng) for instruction in instructions]

    def _answer(self, instruction, rng):
        text = instruction.rpartition("Prompt: ")[2]
        if "number alone" in instruction:
            return f"{min(10, 1 + len(text) // 60)}"
        return f"{text} And {' '.join(rng.permutation(WORDS)[:12])}?"


@pytest.mark.parametrize("writer", [None, Writer()], ids=["by rules", "by a text generator"])
def test_five_generations_raise_the_fitness_and_keep_their_parents(writer):
    generator = EvolutionGenerator(text_generator=writer)
    frame = generate_with(generator, FEW, day=DAY)
    means = generator.mean_fitness_
    assert len(means) == 6
    assert means[-1] > means[0]
    assert means == sorted(means)
    by_id = {i.draft.prompt_id: i for i in generator.history_}
    for individual in generator.history_:
        assert (individual.generation == 0) == (individual.child.parents == ())
        assert all(
            by_id[parent].generation < individual.generation for parent in individual.child.parents
        )
    variables_of = [json.loads(variables) for variables in frame["variables"]]
    assert {t["generation"] for t in variables_of} - {0}
    for prompt_id, variables in zip(frame["prompt_id"], variables_of, strict=True):
        assert variables["parents"] == list(by_id[prompt_id].child.parents)
        assert variables["fitness"] == pytest.approx(by_id[prompt_id].fitness, abs=1e-6)


def test_no_two_evolved_prompts_are_near_duplicates():
    generator, report = EvolutionGenerator(), Report()
    generate_with(generator, FEW, day=DAY, report=report)
    texts = [shingles(i.draft.text) for i in generator.history_]
    assert max(jaccard(a, b) for i, a in enumerate(texts) for b in texts[:i]) <= FEW.alike
    assert report.n_near_duplicates > 0


def test_same_seed_gives_the_same_ancestry():
    first, second = EvolutionGenerator(), EvolutionGenerator()
    generate_with(first, FEW, day=DAY)
    generate_with(second, FEW, day=DAY)
    assert first.history_ == second.history_
    generate_with(second, FEW, day="2026-01-02")
    assert first.history_ != second.history_


def test_quotas_of_category_and_level_are_exact():
    params = FEW.model_copy(update={"difficulties": {"easy": 0.5, "medium": 0.25, "hard": 0.25}})
    counts = generate(params, day=DAY).groupby(["category", "difficulty"]).size()
    assert counts.to_dict() == {
        (c, d): n
        for c in ("coding", "safety")
        for d, n in (("easy", 6), ("medium", 3), ("hard", 3))
    }


def test_mutations_of_a_data_set_keep_references_correct(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": f"What is {a} plus {a + 4}?", "reference": str(2 * a + 4)}) + "\n"
            for a in range(11, 60)
        )
    )
    generator = EvolutionGenerator(path)
    frame = generate_with(generator, SourceParams(n=30, source="evolution", population=20), day=DAY)
    assert len(frame) == 30
    checkable = [
        i.draft for i in generator.history_ if i.generation and i.draft.reference is not None
    ]
    assert len(checkable) > 10
    for draft in checkable:
        ((a, b),) = re.findall(r"What is (\d+) plus (\d+)\?", draft.text)
        assert is_right(draft.reference, f"It is {int(a) + int(b)}.")
        assert "Assume that" not in draft.text


def test_an_unjudged_prompt_is_left_out_and_reported():
    class Mute(Writer):
        def _answer(self, instruction, rng):
            answer = super()._answer(instruction, rng)
            return (
                "hard to say"
                if "number alone" in instruction and "password" in instruction
                else answer
            )

    report = Report()
    generator = EvolutionGenerator(text_generator=Mute())
    generate_with(generator, FEW, day=DAY, report=report)
    assert report.n_rejected["fitness"] > 0
    assert all("password" not in i.draft.text for i in generator.history_)
    assert "judged_difficulty gave no score" in next(
        r.reason for r in report.rejections if r.rule == "fitness"
    )


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("7", 7.0),
        (" 10/10.", 10.0),
        ("Difficulty: 3", 3.0),
        ("11", None),
        ("7 or 8", None),
        ("", None),
        ("0", None),
    ],
)
def test_a_grade_is_a_number_from_1_to_10_or_none(answer, grade):
    class Judge:
        def generate_texts(self, instructions, *, seed):
            return [answer for _ in instructions]

    assert JudgedDifficulty(Judge()).scores(["x"], seed=0) == [grade]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "nothing was written"),
        ("Name a TREE.", "came back unchanged"),
        ("I'm sorry, I cannot.", "talks about the prompt or refuses"),
        ("Here is the new prompt: x", "talks about the prompt or refuses"),
        ("x" * 4001, "4,001 characters"),
    ],
)
def test_an_invalid_mutation_is_refused_with_the_reason(answer, reason):
    class Says:
        def generate_texts(self, instructions, *, seed):
            return [answer for _ in instructions]

    draft = Draft("Name a tree.", "factual", "easy", reference="oak")
    parent = Parent(draft, draft)
    (violation,) = WrittenMutations(Says()).mutate([(parent, parent)], seed=0)
    assert isinstance(violation, RuleViolation)
    assert violation.rule == "mutation"
    assert reason in violation.reason
