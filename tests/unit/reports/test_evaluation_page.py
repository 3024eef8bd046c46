"""The page of an evaluation: what it says of a better, a worse and an equal candidate."""

from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.core.records import CategoryComparison, Evaluation, Interval, ModelVersion
from rlhf_pipeline.reports.evaluation_page import (
    EvaluationEvidence,
    render_evaluation_page,
)
from tests.policy_versions import DIMENSIONS


def interval(value: float, half: float = 0.05, n: int = 120) -> Interval:
    return Interval(value=value, low=value - half, high=value + half, n=n)


def evaluation(win_rate: float = 0.62, **more: Any) -> Evaluation:
    values: dict[str, Any] = {
        "candidate": "demo.policy@2",
        "champion": "demo.policy@1",
        "reward_model": "demo.reward_model@3, platt",
        "n_prompts": 120,
        "prompts_hash": "h",
        "win_rate": interval(win_rate),
        "mean_reward_candidate": interval(0.4),
        "mean_reward_champion": interval(0.1),
        "kl": interval(0.02, 0.01),
        "checkable_candidate": interval(0.5),
        "checkable_champion": interval(0.55),
        "checkable_difference": interval(-0.05, 0.02),
        "length_candidate": interval(66.0),
        "length_champion": interval(60.0),
        "length_controlled_win_rate": interval(0.58),
        "diversity_candidate": 0.41,
        "diversity_champion": 0.45,
        "by_category": (
            CategoryComparison(
                category="maths",
                win_rate=interval(0.7, n=80),
                reward_difference=interval(0.3, n=80),
            ),
        ),
    }
    return Evaluation(**values | more)


SAMPLES = pd.DataFrame(
    {
        "prompt_id": ["p1", "p2", "p3"],
        "prompt": ["What is 2 + 3?", "Say <b>hello</b>", "Name a tree"],
        "completion_candidate": ["It is 6.", "Hello, friend!", "Oak"],
        "completion_champion": ["It is 5.", "Hi", "Oak"],
        "score_candidate": [0.1, 0.9, 0.5],
        "score_champion": [0.6, 0.2, 0.5],
        "right_candidate": [0.0, None, None],
        "right_champion": [1.0, None, None],
    }
)
CANDIDATE = ModelVersion(
    name="demo.policy",
    version=2,
    kind="policy",
    uri="u",
    content_hash="c",
    parent="demo.policy@1",
    data_hash="abcdef0123456789",
    params={"strategy": "dpo"},
)


def page(outcome: Evaluation, samples: pd.DataFrame = SAMPLES) -> str:
    return render_evaluation_page(EvaluationEvidence("demo", outcome, samples, CANDIDATE))


@pytest.mark.parametrize(
    ("rate", "words"), [(0.62, "better"), (0.5, "no difference shown"), (0.38, "worse")]
)
def test_the_verdict_follows_the_interval_of_the_win_rate(rate: float, words: str) -> None:
    assert f"</span> {words}</span></h1>" in page(evaluation(rate))


def test_page_shows_examples_and_lineage_of_the_candidate() -> None:
    html = page(evaluation())
    assert "Say &lt;b&gt;hello&lt;/b&gt;" in html
    assert html.index("Where the candidate loses most") < html.index("It is 6.")
    assert "Answers that became wrong (1 in all)" in html
    assert "<dt>retraining set</dt><dd>abcdef012345</dd>" in html
    assert "<dt>strategy</dt><dd>dpo</dd>" in html
    assert html == page(evaluation())


def test_dimensions_show_the_accuracy_of_their_heads() -> None:
    html = page(evaluation(by_dimension=DIMENSIONS))
    rows = [row.split("</tr>")[0] for row in html.split('id="dimensions"')[1].split("<tr>")[2:6]]
    assert ["better than chance" in row for row in rows] == [True, False, False, False]
    marks = ["better" if "> better<" in row else "> worse<" in row for row in rows]
    assert marks == [False, "better", False, True]
    assert all(figure in rows[1] for figure in ("0.660 (", "0.750 (", "0.820 (", ">120<")), rows[1]
    assert "too few judged pairs for a head" in rows[2]
    assert 'id="dimensions"' not in page(evaluation())
