import json

import pandas as pd
import pytest
from pydantic import ValidationError

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.prompts import GENERATORS, PromptParams, generate, quotas
from rlhf_pipeline.prompts.base import prompt_id

DAY = "2026-01-01"


@pytest.fixture
def prompts_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"Question {i}?", "category": "factual"}) + "\n" for i in range(80)), encoding="utf-8")
    return path


def source_file(source, prompts_file):
    return prompts_file if source == "dataset" else None


@pytest.mark.parametrize("source", sorted(GENERATORS))
def test_every_source_gives_fifty_prompts_of_one_schema_with_source_and_seed(source, prompts_file):
    frame = generate(PromptParams(n=50, source=source, seed=3), day=DAY, source_file=source_file(source, prompts_file))
    pd.testing.assert_frame_equal(check_frame(frame, PROMPTS), frame)
    assert len(frame) == 50
    assert set(frame["source"]) == {source}
    assert frame["seed"].nunique() == 1
    assert frame["prompt_id"].is_unique


@pytest.mark.parametrize("source", sorted(GENERATORS))
def test_the_same_seed_and_day_give_the_same_ids_and_another_day_others(source, prompts_file):
    path = source_file(source, prompts_file)
    params = PromptParams(n=30, source=source, seed=3)
    first, again = generate(params, day=DAY, source_file=path), generate(params, day=DAY, source_file=path)
    other_day = generate(params, day="2026-01-02", source_file=path)
    pd.testing.assert_frame_equal(first, again)
    assert list(first["prompt_id"]) != list(other_day["prompt_id"])


def test_quotas_of_categories_are_exact():
    shares = {"reasoning": 1.0, "factual": 1.0, "creative": 1.0}
    frame = generate(PromptParams(n=60, categories=shares), day=DAY)
    assert frame["category"].value_counts().to_dict() == {"reasoning": 20, "factual": 20, "creative": 20}


def test_quotas_of_difficulties_are_exact_within_each_category():
    frame = generate(PromptParams(n=60, difficulties={"easy": 0.5, "medium": 0.3, "hard": 0.2}), day=DAY)
    counts = frame.groupby("category")["difficulty"].value_counts().unstack()
    assert counts.to_numpy().tolist() == [[5, 2, 3]] * 6  # columns easy, hard, medium


def test_the_largest_remainder_gets_the_odd_prompt():
    assert quotas(10, {"a": 0.26, "b": 0.37, "c": 0.37}) == {"a": 2, "b": 4, "c": 4}
    assert sum(quotas(7, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}).values()) == 7


def test_an_unknown_category_is_refused_with_the_known_ones():
    with pytest.raises(ValidationError, match=r"unknown categories.*reasoning"):
        PromptParams(categories={"poetry": 1})


def test_excluded_prompts_do_not_come_again():
    params = PromptParams(n=200, categories={"safety": 1})
    frozen = generate(params.model_copy(update={"seed": 9}), day="frozen")
    frame = generate(params, day=DAY, exclude=frozenset(frozen["prompt_id"]))
    assert not set(frame["prompt_id"]) & set(frozen["prompt_id"])


def test_a_quota_beyond_the_library_is_an_error_with_a_cure():
    with pytest.raises(PromptError, match=r"unused safety prompts.*Lower n"):
        generate(PromptParams(n=5000, categories={"safety": 1}), day=DAY)


def test_ids_are_the_content_of_text_and_reference():
    row = generate(PromptParams(n=6), day=DAY).iloc[0]
    assert row["prompt_id"] == prompt_id(row["text"], row["reference"])
    assert prompt_id("x", None) != prompt_id("x", "y")


class Writer:
    """A text generator that numbers what it writes and repeats itself on its first call."""

    def __init__(self):
        self.calls = 0

    def generate_texts(self, instructions, *, seed):
        self.calls += 1
        return [f"Prompt {i % 3 if self.calls == 1 else i}\n of {seed}" for i in range(len(instructions))]


def test_a_text_generator_is_asked_again_while_it_repeats_itself():
    writer = Writer()
    frame = generate(PromptParams(n=10, source="freeform"), day=DAY, text_generator=writer)
    assert len(frame) == 10
    assert writer.calls == 2
    assert "instruction" in json.loads(frame["variables"][0])
    assert "\n" not in frame["text"][0]


def test_a_silent_text_generator_is_an_error():
    class Silent:
        def generate_texts(self, instructions, *, seed):
            return ["" for _ in instructions]

    with pytest.raises(PromptError, match="0 unused"):
        generate(PromptParams(n=3, source="freeform"), day=DAY, text_generator=Silent())


def test_plain_lines_of_a_text_file_are_prompts(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("Say hello.\n\nSay goodbye.\n", encoding="utf-8")
    frame = generate(PromptParams(n=2, source="freeform"), day=DAY, source_file=path)
    assert set(frame["text"]) == {"Say hello.", "Say goodbye."}
