"""Builds the chart of drift over days: verdicts by space and detector, decisions, model changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, timedelta
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.records import Verdict
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Panel,
    Role,
    Series,
    Tick,
    day_axis,
    day_value,
)
from rlhf_pipeline.reports.day_marks import (
    add_marks,
    keep_within,
    mark_deployments,
    mark_taste_changes,
)
from rlhf_pipeline.reports.words import display_name, format_count, format_p_value, format_value
from rlhf_pipeline.watch.drift.windows import SPACES_OF_POLICY

TITLE = "Drift by day, space and detector"
NO_TESTS = "No drift report of these days yet. The job feedback writes one for each day with votes."
LANE = 18  # pixels
LABELS = 1.5  # lanes of room for the labels of marks
WORDS = {Verdict.INSUFFICIENT: "insufficient data"}
BY_PROMOTION = "since a policy was promoted"
# verdict in words, or the mark of an explained shift: style and role
MARKS: dict[str, tuple[Literal["dots", "triangles", "diamonds"], Role]] = {
    "insufficient data": ("dots", "small"),
    "stable": ("dots", "ref"),
    BY_PROMOTION: ("diamonds", "model"),
    "warning": ("triangles", "warned"),
    "drift": ("triangles", "fired"),
}
FIRED = (Verdict.WARNING, Verdict.DRIFT)
# spaces in the order of the report: what people decided on first, then what moved beside it
FIRST_SPACES = ("overall", "errors", "calibration")
# on a phone the names of lanes have 25 characters
SHORT_NAMES = {
    "confirmation": "verdict",
    "calibration_slope_p_value": "slope, p",
    "calibration_slope_upper": "slope, upper",
    "ece_lower_bound": "ECE, lower",
    "none": "not tested",
    "word_classifier": "words",
    "chi_squared": "χ²",
    "error_rate": "error rate",
    "sequential_test": "sequential",
    "hddm_a": "HDDM-A",
    "adwin": "ADWIN",
    "ddm": "DDM",
    "ks": "KS",
    "psi": "PSI",
    "mmd": "MMD",
}
# of a decision: its day, words and address
Decided = tuple[date, str, str]


class DriftTest(Answer):
    """One detector or test of a day's drift report."""

    day: date
    space: str
    detector: str
    model_version: str
    verdict: Verdict
    statistic: float | None
    threshold: float | None
    p_value: float | None
    effect: float | None = Field(
        description="Size of the change; of a detector, the rise of errors at its last event."
    )
    n_reference: int
    n_current: int


def chart_drift_days(
    tests: Sequence[DriftTest],
    first: date,
    last: date,
    *,
    decisions: Sequence[Decided] = (),
    policies: Mapping[date, str] | None = None,
    taste_changes: Mapping[date, str] | None = None,
    link: Callable[[date], str] | None = None,
    is_folded: bool = True,
) -> Chart:
    """One lane per space and detector; a day without a report is a gap. Lines mark days on which
    another reward model or policy is deployed than on the day before; `policies` holds the policy
    of each day, `taste_changes` the words of confirmed ones. `link` leads from a day to its tests.

    Folded, only tests that fired have a lane, those that fired first above; the verdict stays. A
    shift of texts or scores that a promotion explains has a mark of its own.
    """
    if not tests:
        return Chart(kind="drift_days", title=TITLE, alt=TITLE, panels=(), notes=(NO_TESTS,))
    every = {(test.space, test.detector) for test in tests}
    fired_names = order_by_firing(tests)
    names = [*[name for name in every if name[0] == "overall"], *fired_names] if is_folded else []
    names = names or _order(every)
    lanes = {name: float(i) for i, name in enumerate(names)}
    n_folded = len(every) - len(lanes)
    explained = find_promotion_shifts(tests, policies or {})
    tests = [test for test in tests if (test.space, test.detector) in lanes]
    x = day_axis(first, last)
    reward_models = {test.day: test.model_version for test in tests if test.model_version != "none"}
    marks = (
        *keep_within(x, mark_taste_changes(taste_changes or {})),
        *mark_deployments({"reward model": reward_models, "policy": policies or {}}),
    )
    bare = x.model_copy(update={"ticks": ()})  # the lower panel has the days
    panels = [
        *([_decision_panel(bare, decisions)] if decisions else []),
        _verdict_panel(
            x, tests, lanes, explained, link, room=LABELS if marks and not decisions else 0
        ),
    ]
    return Chart(
        kind="drift_days",
        title=TITLE,
        alt=f"{TITLE}, from {first} to {last}",
        panels=tuple(add_marks(panels, marks)),
        notes=(
            (f"{format_count(n_folded, 'other test')} found nothing; choose a space to see them",)
            if n_folded
            else ()
        ),
    )


def order_by_firing(tests: Sequence[DriftTest]) -> list[tuple[str, str]]:
    """Space and detector of the tests that warned or found drift, those that did first leading;
    the verdict over all is left out.
    """
    first: dict[tuple[str, str], date] = {}
    for test in sorted(tests, key=lambda test: test.day):
        if test.verdict in FIRED and test.space != "overall":
            first.setdefault((test.space, test.detector), test.day)
    order = _order(set(first))
    return sorted(order, key=lambda name: (first[name], order.index(name)))


def find_promotion_shifts(
    tests: Sequence[DriftTest], policies: Mapping[date, str]
) -> set[tuple[date, str, str]]:
    """Day, space and detector of the shifts of texts and scores that a promotion explains: those of
    the first day of a policy. From the next day on its texts are compared with its own.
    """

    def find_policy(day: date) -> str | None:
        days = [policy_day for policy_day in policies if policy_day <= day]
        return policies[max(days)] if days else None

    return {
        (test.day, test.space, test.detector)
        for test in tests
        if test.verdict in FIRED
        and test.space in SPACES_OF_POLICY
        and find_policy(test.day - timedelta(days=1)) not in (None, find_policy(test.day))
    }


def _short_name(detector: str) -> str:
    return SHORT_NAMES.get(detector, display_name(detector))


def _order(names: set[tuple[str, str]]) -> list[tuple[str, str]]:
    def place(name: tuple[str, str]) -> tuple[int, str, str]:
        space, detector = name
        rank = FIRST_SPACES.index(space) if space in FIRST_SPACES else len(FIRST_SPACES)
        return rank, space, detector

    return sorted(names, key=place)


def _decision_panel(x: Axis, decisions: Sequence[Decided]) -> Panel:
    visible_decisions = [
        decision for decision in decisions if x.low <= day_value(decision[0]) <= x.high
    ]
    return Panel(
        title="Decisions of the trigger and of people",
        x=x,
        y=Axis(low=0.3, high=-0.9, label="event", ticks=(Tick(value=0.0, label="decision"),)),
        height=3 * LANE,  # the labels of the marks stand above the lane
        series=(
            Series(
                style="diamonds",
                role="now",
                name="decision",
                x=tuple(day_value(day) for day, _, _ in visible_decisions),
                y=(0.0,) * len(visible_decisions),
                evidence=tuple(words for _, words, _ in visible_decisions),
                links=tuple(address for _, _, address in visible_decisions),
            ),
        )
        if visible_decisions
        else (),
    )


def _verdict_panel(
    x: Axis,
    tests: Sequence[DriftTest],
    lanes: Mapping[tuple[str, str], float],
    explained: Collection[tuple[date, str, str]],
    link: Callable[[date], str] | None,
    room: float,
) -> Panel:
    """`room` above the lanes is in lanes."""
    return Panel(
        title="Verdict of each day's drift report",
        x=x,
        y=Axis(
            low=len(lanes) - 0.5,
            high=-0.5 - room,
            label="space: detector",
            ticks=tuple(
                Tick(value=at, label=f"{display_name(space)}: {_short_name(detector)}")
                for (space, detector), at in lanes.items()
            ),
        ),
        height=round(LANE * (len(lanes) + 1 + room)),
        series=tuple(
            Series(
                style=style,
                role=role,
                name=name,
                x=tuple(day_value(test.day) for test in points),
                y=tuple(lanes[test.space, test.detector] for test in points),
                n=tuple(test.n_current for test in points),
                faint=(name == WORDS[Verdict.INSUFFICIENT],) * len(points),
                evidence=tuple(describe_test(test) for test in points),
                links=tuple(link(test.day) for test in points) if link else (),
            )
            for name, (style, role) in MARKS.items()
            if (points := [test for test in tests if _name_mark(test, explained) == name])
        ),
    )


def _name_mark(test: DriftTest, explained: Collection[tuple[date, str, str]]) -> str:
    if (test.day, test.space, test.detector) in explained:
        return BY_PROMOTION
    return WORDS.get(test.verdict, test.verdict.value)


def describe_test(test: DriftTest) -> str:
    """Its statistic, threshold, effect and p-value, as far as it has them."""
    parts = {
        "statistic": test.statistic,
        "threshold": test.threshold,
        "effect": test.effect,
    }
    words = [f"{name} {format_value(value)}" for name, value in parts.items() if value is not None]
    if test.p_value is not None:
        words.append(f"p {format_p_value(test.p_value).removeprefix('= ')}")
    return ", ".join(words)
