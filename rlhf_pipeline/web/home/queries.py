"""Composes the state of the project from the store and the metric points."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.metric_catalogue import SILENCE, let_silence_grow
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.improve.loop_settings import warn_of_toy_policy
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.reports.words import format_count, name_models
from rlhf_pipeline.web.decisions.queries import (
    describe_gate,
)
from rlhf_pipeline.web.home.answers import (
    Attention,
    ChampionState,
    HomeOut,
    NextStep,
    WorkNow,
)
from rlhf_pipeline.web.home.headline import write_headline
from rlhf_pipeline.web.permissions import Permission, Principal, is_blind
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_promotion_day, find_vote_days

WINDOW_FIGURES = ("model.accuracy", "model.accuracy_ceiling")
MODEL_FIGURES = (
    "model.day_accuracy",
    "model.day_accuracy_ceiling",
    *WINDOW_FIGURES,
    "model.ece",
)
NOW_FIGURES = ("runs.failed", SILENCE)
VERDICT, OVERALL, WARNING = "drift.verdict", {"space": "overall"}, 1.0
VOTING_NOW = timedelta(minutes=10)
SILENT_S = 900  # of the daemon: a busy one ticks at least every few minutes


def read_home(site: Site, principal: Principal) -> HomeOut:
    now = site.store.database.clock.now()
    points = let_silence_grow(site.store.metric_points.latest(NOW_FIGURES), now)
    gate = site.store.gates.latest()
    champions = _read_champions(site)
    served = next(
        (champion.label for champion in champions if champion.kind == "reward_model"), None
    )
    figures = _read_figures(site, served)
    work = _read_work(site, now)
    n_alerts = site.store.alerts.count_open() if principal.may(Permission.ALERTS_READ) else 0
    last_gate = None if gate is None else describe_gate(site, gate)
    return HomeOut(
        measured_at=now,
        headline=write_headline(site, principal, champions, last_gate),
        attention=(
            *_find_stopped_work(site, n_alerts, points),
            *_find_waiting_releases(site),
            *_find_drift(site),
            *_find_low_accuracy(figures, served),
            *_find_toy_policy(site),
            *_find_policy_notices(site),
            *_find_served_difference(site),
        ),
        next_steps=() if work.n_votes else tuple(_list_next_steps(site, principal)),
        champions=champions,
        figures=figures,
        work=work,
        gate=last_gate,
    )


def labels_alone(site: Site, principal: Principal) -> bool:
    """Whether the user votes without being blind, and no enabled user could vote blind."""
    return (
        principal.may(Permission.VOTES_CAST)
        and not any(
            user.disabled_at is None and is_blind(user.roles) for user in site.store.users.all()
        )
        and bool(site.store.votes.day_span(principal.user_id))
    )


def _find_stopped_work(
    site: Site, n_alerts: int, points: Sequence[MetricPoint]
) -> Iterator[Attention]:
    if n_alerts:
        yield Attention(text=f"{format_count(n_alerts, 'alert')} open", link="/alerts")
    today = site.store.database.clock.now().date()
    if failed := [
        f"{format_count(round(p.value), 'run')} of {p.labels.get('job', 'a job')}"
        for p in points
        if p.name == "runs.failed" and p.day == today and p.value
    ]:
        yield Attention(text=f"failed today: {', '.join(failed)}", link="/runs?state=failed")
    silence = next((p.value for p in points if p.name == SILENCE), None)
    if silence is not None and silence > SILENT_S:
        yield Attention(
            text=f"no sensor has ticked for {_describe_silence(silence)}: start the daemon or "
            "rlhf loop",
            link="/runs",
        )
    elif site.readiness.find_daemon_status() == "absent":
        yield Attention(
            text="no daemon is running, so nothing starts by itself: start rlhf dev or rlhf loop",
            link="/runs",
        )


def _describe_silence(seconds: float) -> str:
    """
    >>> _describe_silence(1800), _describe_silence(7200)
    ('30 minutes', '2.0 hours')
    """
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _find_waiting_releases(site: Site) -> Iterator[Attention]:
    for request in Releases(site.champions, site.settings).list_waiting():
        words = f"a release of {name_models(request.label)} waits for an approver"
        yield Attention(text=words, link="/releases")


def _find_drift(site: Site) -> Iterator[Attention]:
    if n_events := len(site.store.events.find_open()):
        yield Attention(
            text=f"{format_count(n_events, 'drift event')} without a decision",
            link="/drift-events?is_open=true",
        )
    verdict = next(
        (p for p in site.store.metric_points.latest([VERDICT]) if p.labels == OVERALL), None
    )
    if verdict is not None and verdict.value == WARNING:
        yield Attention(
            text=f"the drift report of {verdict.day} warns of a change that is not confirmed yet",
            link=f"/drift/{verdict.day}",
        )


def _find_toy_policy(site: Site) -> Iterator[Attention]:
    """Unless a policy serves that a person registered: no trained one, and not the first."""
    try:
        warning = warn_of_toy_policy(site.settings)
    except ConfigurationError:  # the page of settings says so
        return
    history = site.store.promotions.history(f"{site.settings.project}.policy")
    if warning and history:
        embedded = {history[0].label, *(gate.candidate for gate in site.store.gates.all())}
        if history[-1].label in embedded:
            yield Attention(text=warning, link="/settings")


def _find_policy_notices(site: Site) -> Iterator[Attention]:
    facts = HomeFacts.load(site.settings.home)
    champion = site.store.promotions.champion(f"{site.settings.project}.policy")
    if facts is not None and champion is not None:
        for notice in facts.policy_notices.get(champion.label, ()):
            yield Attention(text=f"{champion.label}: {notice}", link="/production")


def _find_served_difference(site: Site) -> Iterator[Attention]:
    check = Releases(site.champions, site.settings).find_served_check()
    if check is None or check.state == "as judged":
        return
    name = name_models(check.version)
    words = f"it is not checkable whether {name} serves as it was judged"
    if check.state == "differs":
        words = f"what serves is not {name} as it was judged"
    if check.state == "other precision":
        words = f"{name} serves in another precision than it was judged"
    if check.rolled_back:
        words = f"{name} was rolled back, because what served was not the judged version"
    yield Attention(text=f"{words}: {name_models(check.reason)}", link="/releases")


def _find_low_accuracy(figures: Sequence[MetricPoint], served: str | None) -> Iterator[Attention]:
    by_name = {point.name: point for point in figures if point.labels.get("reward_model") == served}
    accuracy, ceiling = (by_name.get(name) for name in WINDOW_FIGURES)
    if (
        accuracy is None
        or ceiling is None
        or accuracy.high is None
        or ceiling.low is None
        or accuracy.high >= ceiling.low
    ):
        return
    yield Attention(
        text="the reward model predicts worse than the votes allow: its accuracy lies below the "
        "noise ceiling",
        link="/alignment",
    )


def _list_next_steps(site: Site, principal: Principal) -> Iterator[NextStep]:
    has_comparisons = site.store.comparisons.first_day() is not None
    is_offered = site.work().n_comparisons > 0
    if has_comparisons and not is_offered:
        yield NextStep(
            title="Offer comparisons",
            text="The comparisons are there, but nobody is asked to judge them. Offer them on the "
            "page Comparisons.",
            link="/comparisons",
            is_done=False,
        )
    else:
        yield NextStep(
            title="Collect comparisons",
            text="Launch the job collection in Dagster, or, while `rlhf dev` does not run, "
            "`rlhf run collection`: it writes prompts and completions and offers them. "
            "`rlhf import preferences FILE --offer` takes your own.",
            link="/comparisons" if has_comparisons else None,
            is_done=is_offered,
        )
    yield NextStep(
        title="Invite annotators",
        text="Add each person with the role annotator and send them their login link.",
        link="/users" if principal.may(Permission.USERS_READ) else None,
        is_done=any(Role.ANNOTATOR in user.roles for user in site.store.users.all()),
    )
    yield NextStep(
        title="Let them judge, and keep the loop running",
        text="`rlhf dev` or `rlhf loop` reports each day and learns from its votes. This page then "
        "shows how well the model predicts people, and when their taste changes.",
        link=None,
        is_done=False,
    )


def _read_figures(site: Site, served: str | None) -> tuple[MetricPoint, ...]:
    """Those of the newest day: of the champion reward model, or of an earlier one where the
    champion has not predicted a reported day yet.
    """
    latest = site.store.metric_points.latest(MODEL_FIGURES)
    newest = max((point.day for point in latest), default=None)
    points = [point for point in latest if point.day == newest]
    labels = {point.labels["reward_model"] for point in points}
    label = served if served in labels else max(labels, default=None)
    return tuple(point for point in points if point.labels["reward_model"] == label)


def _read_work(site: Site, now: datetime) -> WorkNow:
    counted = site.vote_counts()
    work = site.work()
    return WorkNow(
        n_votes=counted.n_votes,
        n_simulated=counted.n_simulated,
        n_votes_today=counted.by_day.get(now.date(), 0),
        n_voting_now=sum(at > now - VOTING_NOW for at in counted.last_at.values()),
        n_open=work.n_open,
    )


def _read_champions(site: Site) -> tuple[ChampionState, ...]:
    promotions = {
        kind: site.store.promotions.champion(f"{site.settings.project}.{kind}")
        for kind in ("reward_model", "policy")
    }
    champions = {kind: promotion for kind, promotion in promotions.items() if promotion is not None}
    moments = [champion.promoted_at for champion in champions.values()]
    days = find_vote_days(site.store, site.settings.project, moments)
    rates = {  # none against the version that a roll back ended
        (gate.candidate, gate.champion): gate.people_win_rate or gate.evaluation.win_rate
        for gate in site.store.gates.all()
        if gate.promoted and gate.evaluation
    }
    return tuple(
        ChampionState(
            **promotion.model_dump(),
            kind=kind,
            votes_until=find_promotion_day(days, promotion),
            win_rate=rates.get(
                (promotion.label, f"{promotion.model_name}@{promotion.previous_version}")
            ),
        )
        for kind, promotion in champions.items()
    )
