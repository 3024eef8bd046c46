"""Reads completions of two policy versions from kept evaluations, the documents that it shows."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.filters import Filter, Value
from rlhf_pipeline.core.metric_catalogue import METRICS
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import CategoryComparison, DimensionComparison, Interval
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples, JudgedSample
from rlhf_pipeline.web.evolution.queries import label_of, list_versions
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

Version = Annotated[int, Field(ge=1, lt=2**31, description="Version of a policy.")]
Pair = tuple[int, int]  # candidate and the version beside it in its evaluation
FIGURES = [name for name in METRICS if name.partition(".")[0] in ("policy", "production")]
MAX_NAMED = 10  # pairs in a message


class CompareFilter(Filter):
    """Which two versions of a policy, and which prompts."""

    a: Version | None = None
    b: Version | None = None
    category: Value = None
    q: Value = Field(default=None, description="A part of the prompt or of a completion.")


class ComparedVersionsFilter(CompareFilter):
    """The same, of two named versions."""

    a: Version
    b: Version


class ComparedPrompt(Answer):
    """Completions of one prompt by both versions. Scores are logits of the reward model."""

    prompt_id: str
    prompt: str
    category: str
    sample_index: int
    completion_a: str
    completion_b: str
    score_a: float
    score_b: float
    difference: float = Field(description="`score_b` minus `score_a`.")
    p_b: float | None = Field(description="Calibrated probability that a person prefers b.")
    right_a: bool | None = Field(description="Null if the prompt has no checkable answer.")
    right_b: bool | None


class ComparedVersions(Page[ComparedPrompt]):
    """One page of the prompts, and figures of all prompts that match the filters."""

    a: str = Field(description="Policy version as name@version.")
    b: str
    reward_model: str = Field(description="What scored.")
    evaluation_set: int | None
    win_rate: Interval = Field(
        description="Of b against a over all prompts, as the evaluation measured it."
    )
    dimensions: tuple[DimensionComparison, ...] = Field(
        description="Of b against a over all prompts, as heads of the reward model estimate it; "
        "empty where votes judge no dimensions of the rubric."
    )
    by_category: tuple[CategoryComparison, ...] = Field(
        description="Of b against a over the prompts of each category that has enough of them."
    )
    points: tuple[MetricPoint, ...] = Field(
        description="The newest metric points `policy.*` and `production.*` of either version, "
        "whatever the filters."
    )
    categories: tuple[str, ...]
    n_rows: int = Field(description="Prompts, times samples of each, that match the filters.")
    n_better_a: int = Field(description="Of these, where a has the higher score.")
    n_better_b: int
    n_same: int = Field(description="Of these, where both completions are the same text.")


def list_pairs(site: Site) -> list[Pair]:
    """The pairs of versions with kept completions, the newest candidate and its newest opponent
    first.
    """
    names, versions = site.files.report_files(), list_versions(site)
    return [
        (candidate, other)
        for candidate in versions
        for other in versions
        if other != candidate
        and site.files.report_path("samples", _name_samples(site, (candidate, other))).name in names
    ]


def choose_versions(filters: CompareFilter, pairs: Sequence[Pair]) -> ComparedVersionsFilter | None:
    """Without both versions, the newest candidate and its champion."""
    a, b = filters.a, filters.b
    if a is None or b is None:
        if not pairs:
            return None
        b, a = pairs[0]
    values = filters.model_dump(include=set(ComparedVersionsFilter.model_fields))
    return ComparedVersionsFilter.model_validate(values | {"a": a, "b": b})


def compare(site: Site, filters: ComparedVersionsFilter) -> ComparedVersions:
    """Raises Problem 404 for versions without completions of the same prompts, 422 for one
    version twice.
    """
    samples, is_turned = _find_samples(site, filters.a, filters.b)
    every = [_build_row(row, is_turned) for row in samples.rows]
    rows = sorted((row for row in every if _matches(row, filters)), key=_rank)
    start, end = _read_place(filters)
    page_rows = rows[start:end]
    evaluation = samples.evaluation
    rate, dimensions = evaluation.win_rate, evaluation.by_dimension
    categories = evaluation.by_category
    return ComparedVersions(
        items=tuple(page_rows),
        next=make_cursor(end) if end < len(rows) else None,
        a=label_of(site, filters.a),
        b=label_of(site, filters.b),
        reward_model=evaluation.reward_model,
        evaluation_set=evaluation.evaluation_set,
        win_rate=rate.complement() if is_turned else rate,
        dimensions=tuple(dimension.complement() for dimension in dimensions)
        if is_turned
        else dimensions,
        by_category=tuple(category.complement() for category in categories)
        if is_turned
        else categories,
        points=_read_points(site, label_of(site, filters.a), label_of(site, filters.b)),
        categories=tuple(sorted({row.category for row in every})),
        n_rows=len(rows),
        n_better_a=sum(row.difference < 0 for row in rows),
        n_better_b=sum(row.difference > 0 for row in rows),
        n_same=sum(row.completion_a == row.completion_b for row in rows),
    )


def _read_points(site: Site, *labels: str) -> tuple[MetricPoint, ...]:
    """The newest of each figure of these versions: of its own completions, and in production."""
    points = site.store.metric_points.latest(FIGURES)
    return tuple(
        point
        for point in points
        if point.labels.get("policy") in labels or point.labels.get("model") in labels
    )


def list_categories(site: Site, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Of the newest evaluation."""
    rows = _read(site, pairs[0]).rows if pairs else ()
    return tuple(sorted({row.category for row in rows}))


def describe_pairs(pairs: Iterable[Pair]) -> str:
    names = [f"{candidate} and {other}" for candidate, other in pairs]
    if not names:
        return (
            "No evaluation has kept completions yet. Each evaluation of a candidate keeps them: "
            "run `retraining`, or materialise evaluation again."
        )
    rest = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"Evaluated together: versions {'; '.join(names[:MAX_NAMED])}{rest}."


def _find_samples(site: Site, a: int, b: int) -> tuple[EvaluationSamples, bool]:
    """The completions of both, and whether a is the candidate."""
    if a == b:
        raise Problem(
            422,
            "A and B are the same version.",
            kind="invalid",
            errors=[("query.b", "is the version of a")],
        )
    pairs = list_pairs(site)
    if (b, a) in pairs:
        return _read(site, (b, a)), False
    if (a, b) in pairs:
        return _read(site, (a, b)), True
    raise Problem(
        404,
        f"Versions {a} and {b} were never judged on the same prompts. Compare them by `rlhf models "
        f"compare {label_of(site, a)} {label_of(site, b)}`. {describe_pairs(pairs)}",
        kind="not_found",
    )


def _read(site: Site, pair: Pair) -> EvaluationSamples:
    name = _name_samples(site, pair)
    samples = site.files.read_reports("samples", [name], EvaluationSamples)
    if name not in samples:  # deleted since it was listed, or damaged
        raise Problem(
            404,
            f"The completions of {name} are gone or cannot be read. Materialise evaluation again.",
            kind="not_found",
        )
    return samples[name]


def _name_samples(site: Site, pair: Pair) -> str:
    return "_".join(label_of(site, version) for version in pair)


def _side(row: JudgedSample, is_candidate: bool) -> tuple[float, str, bool | None]:
    """Score, completion and whether it is right."""
    if is_candidate:
        return row.score_candidate, row.completion_candidate, row.right_candidate
    return row.score_champion, row.completion_champion, row.right_champion


def _build_row(row: JudgedSample, is_turned: bool) -> ComparedPrompt:
    score_a, text_a, right_a = _side(row, is_turned)
    score_b, text_b, right_b = _side(row, not is_turned)
    p_b = None if row.p_win is None else 1 - row.p_win if is_turned else row.p_win
    return ComparedPrompt(
        prompt_id=row.prompt_id,
        prompt=row.prompt,
        category=row.category,
        sample_index=row.sample_index,
        completion_a=text_a,
        completion_b=text_b,
        score_a=score_a,
        score_b=score_b,
        difference=score_b - score_a,
        p_b=p_b,
        right_a=right_a,
        right_b=right_b,
    )


def _matches(row: ComparedPrompt, chosen: CompareFilter) -> bool:
    if chosen.category is not None and row.category != chosen.category:
        return False
    texts = (row.prompt, row.completion_a, row.completion_b)
    return chosen.q is None or any(chosen.q.casefold() in text.casefold() for text in texts)


def _rank(row: ComparedPrompt) -> tuple[bool, float, str, int]:
    """Largest difference first; equal texts last."""
    is_same = row.completion_a == row.completion_b
    return is_same, -abs(row.difference), row.prompt_id, row.sample_index


def _read_place(filters: CompareFilter) -> tuple[int, int]:
    (start,) = parse_cursor(filters.cursor, int) or (0,)
    if start < 0:
        raise cursor_problem()
    return start, start + filters.limit
