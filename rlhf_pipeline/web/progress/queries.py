"""Computes progress and metrics for pages and the API."""

from collections import Counter
from datetime import date, datetime
from statistics import median

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.project import Metrics
from rlhf_pipeline.core.records import AnnotatorKind
from rlhf_pipeline.store import RemainingWork
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.site import Site

MAX_DAYS = 90
MAX_ANNOTATORS = 200


class DayCount(Answer):
    day: date
    n: int


class AnnotatorProgress(Answer):
    annotator_id: str
    name: str | None = Field(description="Only for users with `users.read`.")
    kind: AnnotatorKind
    n: int
    n_today: int
    median_seconds: float | None
    last_at: datetime | None


class ProgressOut(Answer):
    """Votes cast, without skips and votes by machines. A vote and its replacement count once. Days
    are those of `voted_at`; imported votes without a time belong to no day."""

    work: RemainingWork
    votes: int
    machine_votes: int
    votes_by_day: tuple[DayCount, ...]
    annotators: tuple[AnnotatorProgress, ...]


def project_progress(site: Site, principal: Principal) -> ProgressOut:
    """Progress of the newest 90 days and the 200 annotators with the most votes."""
    counted, paces = site.vote_counts(), site.paces()
    today = site.store.database.clock.now().date().isoformat()
    of_today = Counter[str]()
    for tally in site.tallies().get(today, ()):
        of_today[tally.annotator_id] += tally.n_dated
    names = names_for(site, principal)
    people = sorted(counted.by_annotator.items(), key=lambda item: (-item[1], item[0]))
    return ProgressOut(
        work=site.work(),
        votes=counted.n_votes,
        machine_votes=counted.n_machine,
        votes_by_day=[
            DayCount(day=day, n=n) for day, n in sorted(counted.by_day.items())[-MAX_DAYS:]
        ],
        annotators=[
            AnnotatorProgress(
                annotator_id=who,
                name=names.get(who),
                kind=kind,
                n=n,
                n_today=of_today[who],
                median_seconds=median(paces[who]) if who in paces else None,
                last_at=counted.last_at.get(who),
            )
            for (who, kind), n in people[:MAX_ANNOTATORS]
        ],
    )


def metrics(site: Site) -> Metrics:
    counted = site.vote_counts()
    work = site.work()
    version, _ = site.store.rules.latest()
    return Metrics(
        votes=counted.n_votes,
        machine_votes=counted.n_machine,
        votes_today=counted.by_day.get(site.store.database.clock.now().date(), 0),
        skips=counted.n_skips,
        annotators=sum(kind != AnnotatorKind.MACHINE for _, kind in counted.by_annotator),
        comparisons=site.store.comparisons.count(),
        offered=work.n_comparisons,
        wanted=work.n_wanted,
        done=work.n_done,
        leased=work.n_leased,
        open=work.n_open,
        feedback=site.store.feedback.count_by_kind(),
        audit_links=site.store.audit.head()[0],
        guideline_version=site.terms().guideline_version,
        rules_version=version,
    )
