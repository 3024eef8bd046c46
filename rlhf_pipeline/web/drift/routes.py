"""Routes of drift over days: a chart of all detectors, and the tests of one day."""

from collections.abc import Sequence
from datetime import date
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import DayFilter, Value
from rlhf_pipeline.core.records import Verdict
from rlhf_pipeline.improve.retraining.messages import summarise_decision
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.drift_days import (
    Decided,
    chart_drift_days,
    find_promotion_shifts,
    order_by_firing,
)
from rlhf_pipeline.reports.words import display_name, format_threshold, format_value, name_test
from rlhf_pipeline.web.drift.reports import DriftTestOut
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_taste_changes, read_policies

api, pages = api_router("charts", "drift-tests"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
WORST_FIRST = (Verdict.DRIFT, Verdict.WARNING, Verdict.STABLE, Verdict.INSUFFICIENT)


class DriftFilter(DayFilter):
    """Which drift reports, and which space of them."""

    space: Value = None


Chosen = Annotated[DriftFilter, Query()]


@api.get("/charts/drift", response_model=Chart)
def read_chart(site: AnySite, _: Reader, chosen: Chosen) -> Response:
    """The verdict of each space and detector that fired, by day with its evidence, the decisions,
    and the days on which the champion changed; with `space`, of all its detectors. Without
    `until`, up to the newest report; without `since`, 90 days.
    """
    days = site.drift_reports.find_days()
    first, last = chosen.resolve(max(days, default=None))
    if chosen.since is None:
        first = min((day for day in days if first <= day <= last), default=first)
    tests = site.drift_reports.read(first, last)
    chart = chart_drift_days(
        [test for test in tests if chosen.space in (None, test.space)],
        first,
        last,
        decisions=_list_decisions(site),
        policies=read_policies(site.store, first, last),
        taste_changes=find_taste_changes(site.store),
        link=cache(lambda day: f"/drift/{day}"),
        is_folded=chosen.space is None,
    )
    return answer_chart(chart)


@api.get("/drift-tests", responses=problem_responses(404))
def read_day(
    site: AnySite,
    _: Reader,
    day: Annotated[date | None, Query(description="Default: the newest report.")] = None,
) -> Page[DriftTestOut]:
    """The detectors and tests of a day's drift report, those that found drift first."""
    days = site.drift_reports.find_days()
    chosen_day = day or max(days, default=None)
    return Page(items=_read_day(site, chosen_day) if chosen_day else (), next=None)


@pages.get("/drift")
def show_page(site: AnySite, request: Request, principal: Reader, chosen: Chosen) -> Response:
    days = site.drift_reports.find_days()
    first, newest = chosen.resolve(max(days, default=None))
    tests = site.drift_reports.read(first, newest) if days else []
    explained = find_promotion_shifts(tests, read_policies(site.store, first, newest))
    latest = [test for test in tests if test.day == newest]
    fired = [test for test in latest if test.verdict in WORST_FIRST[:2] and test.space != "overall"]
    changes = find_taste_changes(site.store)
    return render(
        "drift/page.html",
        request,
        site,
        principal,
        newest=newest if days else None,
        found=[test for test in fired if (test.day, test.space, test.detector) not in explained],
        explained=[test for test in fired if (test.day, test.space, test.detector) in explained],
        change=max(changes.items(), default=None),
        first_fired=order_by_firing(tests),
        name_test=name_test,
        display=display_name,
        overall=next((test.verdict for test in latest if test.space == "overall"), None),
        spaces=sorted({test.space for test in tests}),
        filters=chosen.chosen,
        left_out=chosen.find_left_out(days),
    )


@pages.get("/drift/{day}")
def show_day(site: AnySite, request: Request, principal: Reader, day: date) -> Response:
    tests = _read_day(site, day)
    ordered = sorted(site.drift_reports.find_days())
    place = ordered.index(day) if day in ordered else 0
    return render(
        "drift/day.html",
        request,
        site,
        principal,
        day=day,
        tests=tests,
        model=tests[0].model_version,  # a report is about one
        display=display_name,
        format_threshold=format_threshold,
        number=format_value,
        alpha=_find_evidence(tests, "alpha"),
        rule=_find_evidence(tests, "rule"),
        before=ordered[place - 1] if place else None,
        after=ordered[place + 1] if place + 1 < len(ordered) else None,
        n_events=len(site.store.events.for_days([day.isoformat()])),
    )


def _read_day(site: Site, day: date) -> tuple[DriftTestOut, ...]:
    tests = site.drift_reports.read_day(day)
    return tuple(sorted(tests, key=lambda test: WORST_FIRST.index(test.verdict)))


def _find_evidence(tests: Sequence[DriftTestOut], name: str) -> Any:
    """What the tests recorded under a name that has one value on a day; None where no test did."""
    return next((test.evidence[name] for test in tests if name in test.evidence), None)


def _list_decisions(site: Site) -> list[Decided]:
    answers = site.store.decisions.find_answers()
    return [
        (
            decision.decided_at.date(),
            summarise_decision(decision, answers.get(decision.stored_id)),
            f"/decisions/{decision.decision_id}",
        )
        for decision in site.store.decisions.all()
    ]
