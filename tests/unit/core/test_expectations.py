"""Suites derived from frame schemas, and what Great Expectations makes of good and bad frames."""

import json

import pandas as pd
import pytest

from rlhf_pipeline.core.errors import ExpectationFailed
from rlhf_pipeline.core.expectations import DataExpectation, build_suite, require, validate
from rlhf_pipeline.core.frames import PROMPTS, SCHEMAS, FrameSchema, check_frame, text


def prompts(n: int = 4) -> pd.DataFrame:
    return check_frame(
        pd.DataFrame(
            {
                "day": "2026-01-01",
                "prompt_id": [f"p{i}" for i in range(n)],
                "text": "Why?",
                "category": "factual",
                "difficulty": "easy",
                "source": "templates",
                "template_id": None,
                "variables": json.dumps({"x": 1}),
                "reference": None,
                "seed": 1,
            }
        ),
        PROMPTS,
    )


def failed(frame: pd.DataFrame, suite: tuple[DataExpectation, ...]) -> list[tuple[str, str]]:
    return [
        (o.expectation.type, o.expectation.subject)
        for o in validate(frame, suite, "frame")
        if not o.passed
    ]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=lambda s: s.name)
def test_an_empty_frame_of_every_schema_passes_its_own_suite(schema: FrameSchema) -> None:
    assert failed(schema.empty_frame(), build_suite(schema)) == []


def test_a_good_frame_passes_in_the_order_of_the_suite() -> None:
    suite = build_suite(PROMPTS)
    outcomes = validate(prompts(), suite, "prompts")
    assert [o.expectation for o in outcomes] == list(suite)
    assert all(o.passed and o.expectation.blocking for o in outcomes)
    require(outcomes)


def test_duplicate_keys_with_missing_values_are_found() -> None:
    schema = FrameSchema("votes", {"a": text("x"), "b": text("y", nullable=True)}, key=("a", "b"))
    frame = pd.DataFrame({"a": ["1", "1", "2"], "b": [None, None, None]}).astype("str")
    assert failed(frame, build_suite(schema)) == [("expect_compound_columns_to_be_unique", "a, b")]


def test_schema_violations_are_named_with_count_and_sample() -> None:
    frame = prompts()
    frame.loc[1, "difficulty"] = "harder"
    frame.loc[2, "text"] = None
    frame.loc[3, "variables"] = "{"
    frame.loc[3, "prompt_id"] = "p0"
    outcomes = [o for o in validate(frame, build_suite(PROMPTS), "prompts") if not o.passed]
    assert [(o.expectation.subject, o.n_unexpected) for o in outcomes] == [
        ("text", 1),
        ("difficulty", 1),
        ("variables", 1),
        ("day, prompt_id", 2),
    ]
    assert outcomes[1].sample == ("harder",)
    assert "1 of 4 rows, such as harder" in outcomes[1].message
    with pytest.raises(ExpectationFailed, match="harder"):
        require(outcomes)


def test_unusual_distribution_warns_without_blocking() -> None:
    rare = DataExpectation(type="expect_table_row_count_to_be_between", kwargs={"min_value": 50})
    outcomes = validate(prompts(), build_suite(PROMPTS, [rare]), "prompts")
    assert not outcomes[-1].passed
    assert "observed 4" in outcomes[-1].message
    require(outcomes)
