"""The day's page: three parts, nothing from elsewhere, no prompt that becomes markup, and words
where numbers are missing.
"""

import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import DriftEvent, Evaluation, Interval
from rlhf_pipeline.learn.calibration import PredictedVotes, calibration_by_group
from rlhf_pipeline.reports.drift_page import (
    DayEvidence,
    render_drift_page,
)
from rlhf_pipeline.watch.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.watch.drift.policy import PolicyDay, PromptMean
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.report import DriftSignals, drift_report
from rlhf_pipeline.watch.drift.slices import ErrorSlice
from rlhf_pipeline.watch.drift.stream import scan
from rlhf_pipeline.watch.drift.words import hash_words, name_buckets

MODEL, DAY = "demo.reward_model@3", "2026-01-05"
NASTY = '<script>alert("x")</script> & <img src=http://evil.example/x onerror=alert(1)> what then?'
ASKED = (
    "Explain to a child why the sky is blue.",
    "Write a polite mail that declines a meeting on Friday.",
    "Give me a recipe with lentils for four people.",
    "What is the capital of Australia, and since when?",
)
NO_WINDOWS = "No clusters: the reference window has 0 embedded prompts, 15 are needed."
SLICES = (
    ErrorSlice(
        by="annotator",
        name="ann-7",
        n=64,
        error_rate=Interval(value=0.62, low=0.49, high=0.73, n=64),
        error_rest=0.3,
        lift=Interval(value=2.07, low=1.6, high=2.7, n=64),
        p_value=0.0004,
        is_failing=True,
    ),
    ErrorSlice(by="category", name="poetry", n=4),
)
PARTS = {"drift-over-time", "semantic-clusters", "calibration"}
VOID = {"meta", "br", "hr", "input", "img", "link", "col"}


class Page(HTMLParser):
    """What a browser would find: which elements, attributes and text, and whether every element is
    closed in order.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.elements if name in attributes]


def day_window(seed: int, sizes: tuple[int, ...], errors: tuple[float, ...], name: str) -> Window:
    """Prompts of four kinds; of kind i a share errors[i] of the predictions is wrong."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(len(sizes)), sizes)
    n = len(kind)
    rows = pd.DataFrame(
        {
            "comparison_id": [f"{name}{k}-{i:04d}" for i, k in enumerate(kind)],
            "prompt_id": [f"{name}p{i}" for i in range(n)],
            "prompt_length": [len(ASKED[k]) for k in kind] + rng.poisson(4, size=n),
            "completion_length": rng.poisson(180, size=n),
            "p": rng.beta(2, 2, size=n).clip(0.02, 0.98),
            "error": (rng.random(n) < np.array(errors)[kind]).astype(float),
            "n_votes": 1,
            "embedding_row": np.arange(n),
            "score": rng.normal(size=n),
            "prompt_words": [hash_words(ASKED[k]) for k in kind],
            "completion_words": [hash_words(f"{ASKED[k]} indeed") for k in kind],
        }
    )
    return Window(
        MODEL,
        rows,
        (6 * np.eye(len(sizes), 24)[kind] + rng.normal(size=(n, 24))).astype(np.float32),
        mixes={
            "choices": {"a": n // 2, "b": n - n // 2},
            "strengths": {"1": n // 3, "3": n - n // 3},
            "annotators": {"ann": n // 2, "ben": n - n // 2},
            "prompt_mix": {f"kind {i}": size for i, size in enumerate(sizes)},
        },
        words=name_buckets(ASKED),
    )


def evidence(prompt: str | None = None, params: ClusterParams | None = None) -> DayEvidence:
    """A day on which one kind of prompts doubled and got worse, after four quiet ones."""
    rng = np.random.default_rng(7)
    reference = day_window(0, (80, 80, 80, 80), (0.22,) * 4, "r")
    current = day_window(1, (150, 40, 60, 50), (0.6, 0.2, 0.25, 0.2), "c")
    p = current.rows["p"].to_numpy()
    wrong = current.rows["error"].to_numpy()
    day_votes = pd.DataFrame(
        {
            "p": p,
            "outcome": np.where(p > 0.5, 1 - wrong, wrong),
            "group": current.rows["comparison_id"],
            "error": wrong,
        }
    )
    errors = pd.DataFrame(
        {
            "seq": np.arange(1, 1501),
            "day": [f"2026-01-{1 + i // 300:02d}" for i in range(1500)],
            "annotator_id": [f"p{i % 7}" for i in range(1500)],
            "comparison_id": [f"c{i}" for i in range(1500)],
            "category": "all",
            "expected_error": 0.25,
            "error": np.r_[rng.random(1200) < 0.22, rng.random(300) < 0.45].astype(float),
        }
    )
    result = scan(errors, model_version=MODEL)
    failed = {"name": "calibration_slope_upper", "passed": False, "value": 0.41, "threshold": 0.8}
    passed = {"name": "ece_lower_bound", "passed": True, "value": 0.031, "threshold": 0.05}
    calibration = DriftEvent(
        kind="calibration",
        model_version=MODEL,
        detector="calibration_slope_upper",
        params_hash="h",
        stream="calibration",
        seq=1500,
        day=date(2026, 1, 5),
        evidence={},
    )
    events = [*result.events, calibration]
    report = drift_report(
        DAY,
        model_version=MODEL,
        reference=reference,
        current=current,
        signals=DriftSignals(events, [failed, passed], 1500),
    )
    metric = {"column": "prompt_length", "method": "ks", "threshold": 0.01}
    return DayEvidence(
        project="demo",
        day=DAY,
        report=report,
        reference=reference,
        current=current,
        predictions=day_votes,
        errors=errors,
        events=events,
        noise_ceiling=Interval(value=0.86, low=0.83, high=0.89, n=240),
        clusters=semantic_clusters(
            reference,
            current,
            params,
            day=DAY,
            prompts={
                i: prompt or ASKED[int(i[1])]
                for window in (reference, current)
                for i in window.rows["comparison_id"]
            },
        ),
        slices=SLICES,
        texts=lambda ids: {
            i: (prompt or f"{ASKED[int(i[1])]} ({i})", prompt or "Certainly! Here it is.")
            for i in ids
        },
        data_drift={
            "metrics": [
                {"config": metric, "value": 1e-7},
                {"config": metric | {"column": "confidence"}, "value": 0.4},
            ]
        },
        files=[f"calibration_{DAY}.json", f"data_drift_{DAY}.json"],
    )


def nothing() -> DayEvidence:
    return DayEvidence("demo", DAY, drift_report(DAY), clusters=NO_WINDOWS)


@pytest.fixture(scope="module")
def source() -> str:
    return render_drift_page(evidence())


def test_the_page_has_its_three_parts_and_every_picture_has_words(source: str) -> None:
    page = Page(source)
    assert page.open == []
    assert source.startswith('<!doctype html>\n<html lang="en">')
    assert set(page.attributes("id")) >= PARTS
    assert len(page.attributes("id")) == len(set(page.attributes("id")))
    pictures = [
        attributes
        for tag, attributes in page.elements
        if tag == "svg" and attributes.get("aria-hidden") != "true"
    ]
    assert len(pictures) == 4
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in pictures)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    assert {attributes.get("scope") for tag, attributes in page.elements if tag == "th"} == {
        "row",
        "col",
    }


def test_the_deployed_policy_is_shown_by_day_with_the_win_rate_of_its_gate() -> None:
    days = [
        PolicyDay(
            day=f"2026-01-0{n}",
            policy=f"demo.policy@{1 + n // 3}",
            n_completions=100,
            refused=PromptMean(n=50, mean=0.02, variance=0.02),
            length=PromptMean(n=50, mean=400 if n == 5 else 200, variance=900),
            reward=None if n == 1 else PromptMean(n=50, mean=0.5, variance=1),
            reward_model=None if n == 1 else f"demo.reward_model@{n // 2}",
        )
        for n in range(1, 6)
    ]
    won = Interval(value=0.61, low=0.55, high=0.67, n=300)
    evaluation = Evaluation.model_construct(win_rate=won, champion="demo.policy@1")
    page = Page(
        render_drift_page(
            replace(
                nothing(),
                report=drift_report(DAY),
                policy_days=days,
                evaluations={"demo.policy@2": evaluation},
            )
        )
    )
    assert "0.50 0.22 to 0.78 by reward_model@2" in page.text
    assert page.text.count("0.610 0.550 to 0.670 against policy@1") == 3
    assert page.text.count("not evaluated") == 2
    none = Page(render_drift_page(nothing())).text
    assert "No policy of this project completed prompts on this day" in none


@pytest.mark.parametrize(
    "report_pages", [evidence, lambda: evidence(NASTY), nothing], ids=["full", "nasty", "nothing"]
)
def test_page_loads_nothing_and_runs_no_script(report_pages) -> None:
    """Reports are sent by mail and opened without a network."""
    source = render_drift_page(report_pages())
    page = Page(source)
    active = {"script", "img", "link", "iframe", "object", "embed", "base", "form", "use", "image"}
    assert not {tag for tag, _ in page.elements} & active
    names = {name for _, attributes in page.elements for name in attributes}
    assert not names & {"src", "srcset", "style", "action", "xlink:href"}
    assert not [name for name in names if name.startswith("on")]
    assert set(page.attributes("href")) <= {f"#{name}" for name in page.attributes("id")}
    assert not re.search(r"url\(|@import|@font-face|expression\(", source)


def test_prompt_is_shown_verbatim_without_markup() -> None:
    source = render_drift_page(evidence(NASTY))
    assert "<script" not in source
    assert "<img" not in source
    assert NASTY in Page(source).text
    assert [tag for tag, _ in Page(source).elements] == [
        tag for tag, _ in Page(render_drift_page(evidence("x"))).elements
    ]


def test_the_verdict_is_written_out_and_the_worst_cluster_is_first(source: str) -> None:
    page = Page(source)
    assert f"{DAY} ✕ drift" in page.text
    assert "failing, got worse, grew" in page.text
    rows = page.text[page.text.index("Clusters, reference against day") :]
    assert re.search(r"blue · \w+ · \w+ ✕ failing, got worse, grew 2026-01-05-A", rows)
    assert rows.index("failing, got worse, grew") < rows.index("steady")
    assert ASKED[0] in rows[: rows.index("steady")]
    assert "calibration slope, upper end of the interval ✕ drift 0.41 0.8" in page.text
    assert "ECE, lower bound ✓ stable 0.031 0.05" in page.text
    assert re.search(r"ADWIN ✕ drift .*? drift at vote 1,\d+, since about 1,\d+", page.text)
    assert "prompt length ks < 0.001 0.01 yes" in page.text


def test_control_charts_count_the_points_they_mark(source: str) -> None:
    text = Page(source).text
    part = text[text.index("Control charts Each point is 100 votes in a row.") :]
    assert re.search(r"p-chart one point beyond 3σ \d+ of \d+", part)
    assert re.search(r"EWMA chart the moving average beyond its limit \d+ of \d+", part)
    few = evidence()
    few = replace(few, errors=few.errors.iloc[:850])
    assert "The model has 8 subgroups of 100 votes" in Page(render_drift_page(few)).text


def test_an_empty_day_has_a_page_that_names_what_is_missing() -> None:
    page = Page(render_drift_page(nothing()))
    assert page.open == []
    assert set(page.attributes("id")) >= PARTS
    assert "? insufficient" in page.text
    assert page.text.count("Too little data.") >= 4
    for words in (
        "no error to draw",
        "reference window has 0 embedded prompts",
        "no reference window",
        "day has 0 judged predictions",
    ):
        assert words in page.text, words
    assert "nan" not in page.text.lower().replace("hand", "").split()
    assert [tag for tag, attributes in page.elements if tag == "svg"] == []


CEILING, BEST = "86.0%", "best reachable 14.0%"


def test_every_accuracy_has_its_ceiling(source: str) -> None:
    page = Page(source)
    summary = page.text[page.text.index("Error rate") : page.text.index("Clusters changed")]
    clusters = page.text[page.text.index("Clusters, reference") : page.text.index("3 Calibration")]
    calibration = page.text[page.text.index("3 Calibration") :]
    over_time = page.text[
        page.text.index("1 Drift over time") : page.text.index("2 Semantic clusters")
    ]
    for part, words in (
        (summary, BEST),
        (clusters, BEST),
        (over_time, CEILING),
        (calibration, f"Noise ceiling: {CEILING}"),
    ):
        assert words in part, words
    assert source.count('class="ceiling-band"') == 2  # in both pictures of such shares
    unknown = Page(render_drift_page(replace(evidence(), noise_ceiling=None))).text
    assert unknown.count("no comparison has two votes or a repeat") >= 3


def test_each_source_and_category_has_figures_unless_it_is_tiny() -> None:
    e = evidence()
    ids = e.predictions["group"].to_numpy()
    names = {i: "tiny" if n < 4 else "convarg" for n, i in enumerate(dict.fromkeys(ids))}
    ceilings = {
        "source": {
            "convarg": Interval(
                value=0.81, low=0.75, high=0.87, n=99, few_groups=3, basis="repeats"
            )
        }
    }
    groups = calibration_by_group(
        PredictedVotes.of_day(e.predictions), {"source": names}, ceilings=ceilings
    )
    text = Page(render_drift_page(replace(e, by_group=groups))).text
    table = text[
        text.index("This day by source and category") : text.index("Of fewer than 10 comparisons")
    ]
    assert re.search(
        r"source: convarg 296 0\.\d+ \(.*?\) 0\.810 \(0\.750 to 0\.870\) within 3 groups from "
        r"repeats 0\.\d+ \(.*?\) -?\d\.\d+ \(",
        table,
    )
    assert "source: tiny 4 too few unknown too few too few" in table
    assert "A noise ceiling is unknown where no comparison has two votes or a repeat." in text
