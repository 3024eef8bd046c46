"""How far the work is, as pages and scripts are told. Knows counts; knows no route."""

from collections.abc import Iterable
from datetime import date
from statistics import median

from rlhf_pipeline.records import AnnotatorKind
from rlhf_pipeline.store import WorkLeft
from rlhf_pipeline.web.counting import Counted
from rlhf_pipeline.web.schemas import AnnotatorProgress, DayCount, Metrics, ProgressOut, Work
from rlhf_pipeline.web.site import Site

DAYS_TOLD = 90
ANNOTATORS_TOLD = 200


def of_project(site: Site, *, shows_names: bool) -> ProgressOut:
    """What is told of it: the newest 90 days, the 200 annotators with most votes."""
    counted = site.progress.counted()
    today = site.store.database.clock.now().date()
    names = {user.user_id: user.name for user in site.store.users.all()} if shows_names else {}
    days = sorted(counted.by_day.items())[-DAYS_TOLD:]
    people = [_annotator(counted, who, kind, days, today, names) for (who, kind), days in list(counted.by_annotator.items())]
    return ProgressOut(
        work=work(site.progress.work()),
        votes=counted.n_votes,
        machine_votes=counted.n_machine,
        votes_by_day=[DayCount(day=day, n=n) for day, n in days],
        annotators=_most_first(people),
    )


def metrics(site: Site) -> Metrics:
    counted, left = site.progress.counted(), site.progress.work()
    version, _ = site.store.rules.latest()
    return Metrics(
        votes=counted.n_votes,
        machine_votes=counted.n_machine,
        votes_today=counted.by_day.get(site.store.database.clock.now().date(), 0),
        skips=counted.n_skips,
        annotators=sum(kind != AnnotatorKind.MACHINE for _, kind in list(counted.by_annotator)),
        comparisons=site.store.comparisons.count(),
        offered=left.n_comparisons,
        slots=left.n_slots,
        done=left.n_done,
        leased=left.n_leased,
        open=left.n_open,
        feedback=site.store.feedback.counts(),
        audit_links=site.store.audit.head()[0],
        guideline_version=site.terms().guideline_version,
        rules_version=version,
    )


def work(left: WorkLeft) -> Work:
    return Work(**left.model_dump(), n_open=left.n_open)


def _annotator(
    counted: Counted, who: str, kind: AnnotatorKind, days: dict[date | None, int], today: date, names: dict[str, str]
) -> AnnotatorProgress:
    paces = counted.paces.get(who)
    return AnnotatorProgress(
        annotator_id=who,
        name=names.get(who),
        kind=kind,
        n=sum(days.values()),
        n_today=days.get(today, 0),
        median_seconds=median(paces) if paces else None,
        last_at=counted.last_at.get(who),
    )


def _most_first(people: Iterable[AnnotatorProgress]) -> list[AnnotatorProgress]:
    return sorted(people, key=lambda one: (-one.n, one.annotator_id))[:ANNOTATORS_TOLD]
