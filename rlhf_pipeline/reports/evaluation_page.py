"""Builds a candidate's evaluation as one HTML page: whether it is better, where, and examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_pipeline.core.records import Evaluation, Interval, ModelVersion
from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, Tick, percent_ticks, point_series
from rlhf_pipeline.reports.draw import chart_css, draw_legend, draw_svg
from rlhf_pipeline.reports.rendering import render_page

N_EXAMPLES = 8  # of each kind
ROW_HEIGHT = 30
EXPECTED, BY_LABELS = "expected of people", "by the model that labelled its pairs"
EXPLAINED = {
    EXPECTED: "Expected of people: the share of votes that people are expected to cast for the "
    "candidate, from calibrated probabilities.",
    BY_LABELS: "By the model that labelled its pairs: judged by the reward model whose labels the "
    "candidate was trained on, so errors learnt from it may count as wins.",
}
PERCENTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class EvaluationEvidence:
    """The data of the page. `samples` has prompt, completions, scores and correctness as `evaluate`
    returns them; `candidate` names the strategy and data it was trained with.
    """

    project: str
    evaluation: Evaluation
    samples: pd.DataFrame
    candidate: ModelVersion


def render_evaluation_page(evidence: EvaluationEvidence) -> str:
    """Render the page as one HTML document; the same evaluation gives the same bytes."""
    evaluation, samples = evidence.evaluation, evidence.samples
    gains = samples.assign(gain=samples["score_candidate"] - samples["score_champion"])
    gains = gains.sort_values(["gain", "prompt_id"], kind="stable")
    losses, wins = gains[gains["gain"] < 0], gains[gains["gain"] > 0]
    wronged = gains[(gains["right_champion"] == 1) & (gains["right_candidate"] == 0)]
    return render_page(
        "evaluation_page.html",
        evidence=evidence,
        evaluation=evaluation,
        style=chart_css(),
        draw_svg=draw_svg,
        draw_legend=draw_legend,
        left_out="\0",
        verdict=judge_win_rate(evaluation.win_rate),
        chart=chart_evaluation(evaluation),
        properties=_describe_training(evidence.candidate),
        examples=[
            ("Where the candidate loses most", _list_rows(losses)),
            ("Where it gains most", _list_rows(wins[::-1])),
            ("Answers that became wrong", _list_rows(wronged)),
        ],
        n_wronged=len(wronged),
    )


def judge_win_rate(rate: Interval) -> tuple[str, str]:
    """Badge and words of a win rate's interval."""
    if rate.low > 0.5:
        return "stable", "better"
    return ("drift", "worse") if rate.high < 0.5 else ("warning", "no difference shown")


def chart_evaluation(evaluation: Evaluation) -> Chart:
    """Win rates against champion and base, and by category, with their intervals."""
    overall = [
        ("against the champion", evaluation.win_rate),
        ("at equal length", evaluation.length_controlled_win_rate),
        (EXPECTED, evaluation.expected_win_rate),
        (BY_LABELS, evaluation.win_rate_by_labels),
        ("against the first policy of its line", evaluation.win_rate_against_base),
    ]
    categories = [(category.category, category.win_rate) for category in evaluation.by_category]
    rates = [(name, i) for name, i in overall if i is not None]
    panels = [_rate_panel("win rate", rates)]
    if categories:
        panels.append(_rate_panel("win rate by category", categories))
    return Chart(
        kind="evaluation",
        title=f"Win rates of {evaluation.candidate}",
        alt="Win rates of the candidate with 95% intervals, overall and by category",
        columns=len(panels),
        notes=(
            "Lines are 95% intervals, drawn over prompts.",
            *(EXPLAINED[name] for name, _ in rates if name in EXPLAINED),
        ),
        panels=tuple(panels),
    )


def _rate_panel(title: str, rates: Sequence[tuple[str, Interval]]) -> Panel:
    return Panel(
        title=title,
        x=Axis(low=0, high=1, label="win rate", unit="share", ticks=percent_ticks(PERCENTS)),
        y=Axis(
            low=len(rates) - 0.5,
            high=-0.5,
            label="comparison",
            ticks=tuple(Tick(value=i, label=name) for i, (name, _) in enumerate(rates)),
            has_grid=False,
        ),
        height=ROW_HEIGHT * max(len(rates), 2),
        marks=(Mark(style="line", role="perfect", x=(0.5, 0.5), name="equally good"),),
        series=(
            point_series(
                range(len(rates)),
                [interval for _, interval in rates],
                along="x",
                role="now",
                name="prompts won by the candidate",
            ),
        ),
    )


def _list_rows(samples: pd.DataFrame) -> list[dict[str, Any]]:
    columns = ["prompt", "completion_candidate", "completion_champion", "gain"]
    rows: list[dict[str, Any]] = samples[columns].head(N_EXAMPLES).to_dict("records")
    return rows


def _describe_training(candidate: ModelVersion) -> list[tuple[str, str]]:
    """What the candidate was made of, for the head of the page."""
    properties = [
        ("strategy", candidate.params.get("strategy")),
        ("trained from", candidate.parent),
        ("retraining set", (candidate.data_hash or "")[:12]),
    ]
    return [(name, str(value)) for name, value in properties if value]
