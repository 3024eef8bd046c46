import re

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.generate.prompts import Report, generate
from rlhf_pipeline.generate.prompts.constraints import (
    ConstraintParams,
    Constraints,
)
from rlhf_pipeline.generate.prompts.parameters import SourceParams

DAY = "2026-01-01"


def broken(text, embed=None, **params):
    return Constraints(ConstraintParams(**params), embed).find_violation(text)


@pytest.mark.parametrize(
    ("text", "params", "rule", "reason"),
    [
        ("short", {"min_chars": 6}, "length", r"5 characters, at least 6 .*min_chars"),
        ("rather long", {"max_chars": 6}, "length", r"11 characters, at most 6 .*max_chars"),
        ("Name a rivers' end.", {"must": ["river"]}, "must", "'river' is missing"),
        ("Name a big  River.", {"must_not": ["big river"]}, "must_not", "'big river' occurs"),
        ("Name a cafe\u0301.", {"must_not": ["caf\u00e9"]}, "must_not", "is forbidden"),
        ("Name a ｒｉｖｅｒ.", {"must_not": ["river"]}, "must_not", "is forbidden"),
        ("Die STRASSE.", {"must_not": ["straße"]}, "must_not", "is forbidden"),
        ("写一首关于大海的诗", {"must_not": ["大海"]}, "must_not", "is forbidden"),
        (" \n", {}, "empty", "the prompt is empty"),
        ("x" * 100_001, {}, "size", "100,001 bytes, the limit is 100,000"),
        ("a\x00b", {}, "text", "NUL"),
        ("a\ud800b", {}, "text", "the prompt holds a lone surrogate after 1 characters"),
    ],
)
def test_a_prompt_that_breaks_a_rule_is_refused_with_the_reason(text, params, rule, reason):
    violation = broken(text, **params)
    assert violation is not None
    assert violation.rule == rule
    assert re.search(reason, violation.reason)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("123456", {"min_chars": 6, "max_chars": 6}),
        ("The RIVER rises.", {"must": ["river"]}),
        ("Two rivers.", {"must_not": ["river"]}),
        ("Use C++ here.", {"must": ["C++"]}),
        ("写一首关于大海的诗", {"must": ["大海"]}),
        ("바다는 넓다", {"must": ["바다"]}),
        ("cafe\u0301 or tea", {"must": ["caf\u00e9"]}),
    ],
)
def test_a_prompt_that_keeps_all_rules_passes(text, params):
    assert broken(text, **params) is None


def embed(texts):
    """Unit vectors: how often a text says sea, and how often rock."""
    vectors = np.array(
        [[1e-3 + text.lower().count("sea"), 1e-3 + text.lower().count("rock")] for text in texts],
        dtype=np.float32,
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_topic_rule_uses_similarity_of_embeddings():
    assert broken("Tell me of the sea.", embed, topic="sea") is None
    violation = broken("Tell me of a rock.", embed, topic="sea")
    assert violation.rule == "topic"
    assert "similarity 0.00 to 'sea', at least 0.30" in violation.reason


def test_a_topic_without_an_encoder_is_an_error():
    with pytest.raises(PromptError, match="needs a sentence encoder"):
        generate(SourceParams(n=1, topic="sea"), day=DAY)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_chars": 9, "max_chars": 8}, "min_chars 9 is above max_chars 8"),
        ({"must": ["Tea"], "must_not": ["tea"]}, "listed in both must and must_not"),
        ({"must": [" "]}, "a term is empty"),
    ],
)
def test_unsatisfiable_constraints_are_refused(params, message):
    with pytest.raises(ValidationError, match=message):
        SourceParams(**params)


def test_violating_prompts_are_rejected_with_a_reason():
    rules = {
        "min_chars": 40,
        "max_chars": 60,
        "must": ["Ana"],
        "must_not": ["rain", "moon"],
    }
    report = Report()
    frame = generate(
        SourceParams(n=30, categories={"creative": 1, "coding": 1}, **rules), day=DAY, report=report
    )
    assert len(frame) == 30
    assert [text for text in frame["text"] if broken(text, **rules)] == []
    assert report.n_kept == 30
    rejections = report.rejections
    assert 30 < len(rejections) <= report.n_rejected.total()
    assert all(r.reason and r.text and r.rule in rules | {"length": 0} for r in rejections)
    assert set(report.n_rejected) >= {"length", "must"}


@pytest.mark.parametrize("source", ["templates", "freeform", "evolution"])
def test_rules_hold_for_every_source(source):
    frame = generate(
        SourceParams(
            n=12, source=source, min_chars=38, max_chars=160, must_not=["name"], library="all"
        ),
        day=DAY,
    )
    assert frame["text"].str.len().between(38, 160).all()
    assert not frame["text"].str.contains(r"\bname\b", case=False).any()
