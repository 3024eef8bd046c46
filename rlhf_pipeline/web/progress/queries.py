"""Computes progress and metrics for pages and the API."""

from collections.abc import Iterable
from statistics import median

from rlhf_pipeline.api_types.project import AnnotatorProgress, DayCount, Metrics, ProgressOut, Work
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotatorKind
from rlhf_pipeline.store import RemainingWork
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.progress.vote_counter import VoteCounts
from rlhf_pipeline.web.site import Site

MAX_DAYS = 90
MAX_ANNOTATORS = 200


def project_progress(site: Site, principal: Principal) -> ProgressOut:
    """Progress of the newest 90 days and the 200 annotators with the most votes."""
    counted = site.vote_counter.counts()
    today = site.store.database.clock.now().date()
    names = (
        {user.user_id: user.name for user in site.store.users.all()}
        if principal.may(Permission.USERS_READ)
        else {}
    )
    days = sorted(counted.by_day.items())[-MAX_DAYS:]
    of_today = site.store.votes.count_of_day(today)
    people = [
        _build_annotator(counted, who, kind, n, of_today.get(who, 0), names)
        for (who, kind), n in list(counted.by_annotator.items())
    ]
    return ProgressOut(
        work=build_work(site.work()),
        votes=counted.n_votes,
        machine_votes=counted.n_machine,
        votes_by_day=[DayCount(day=day, n=n) for day, n in days],
        annotators=_sort_by_votes(people),
    )


def metrics(site: Site) -> Metrics:
    counted = site.vote_counter.counts()
    left = site.work()
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
        feedback=site.store.feedback.count_by_kind(),
        audit_links=site.store.audit.head()[0],
        guideline_version=site.terms().guideline_version,
        rules_version=version,
    )


def build_work(left: RemainingWork) -> Work:
    return Work(**left.model_dump(), n_open=left.n_open)


def _build_annotator(
    counted: VoteCounts,
    who: str,
    kind: AnnotatorKind,
    n: int,
    n_today: int,
    names: dict[str, str],
) -> AnnotatorProgress:
    paces = counted.paces.get(who)
    return AnnotatorProgress(
        annotator_id=who,
        name=names.get(who),
        kind=kind,
        n=n,
        n_today=n_today,
        median_seconds=median(paces) if paces else None,
        last_at=counted.last_at.get(who),
    )


def _sort_by_votes(people: Iterable[AnnotatorProgress]) -> list[AnnotatorProgress]:
    return sorted(people, key=lambda one: (-one.n, one.annotator_id))[:MAX_ANNOTATORS]
