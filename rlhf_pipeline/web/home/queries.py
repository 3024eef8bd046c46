"""Composes the state of the project from the store and the metric points."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from rlhf_pipeline.core.api_types.filters import AlertFilter
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.metric_catalogue import SILENCE, let_silence_grow
from rlhf_pipeline.core.monitoring import Alert, MetricPoint
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.improve.loop_settings import warn_of_toy_policy
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.decisions.queries import (
    describe_decision,
    describe_gate,
    find_changes,
)
from rlhf_pipeline.web.home.answers import (
    Attention,
    ChampionState,
    HomeOut,
    NextRun,
    NextStep,
    StageState,
    WorkNow,
)
from rlhf_pipeline.web.home.headline import write_headline
from rlhf_pipeline.web.home.stages import (
    STAGE_JOBS,
    count_failed_runs,
    describe_stages,
)
from rlhf_pipeline.web.permissions import Permission, Principal, is_blind
from rlhf_pipeline.web.runs.routes import (
    AutomationsOut,
    SpendingOut,
    read_automations,
    read_spending,
)
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_vote_days, find_votes_until

WINDOW_FIGURES = ("model.accuracy", "model.accuracy_ceiling")
MODEL_FIGURES = (
    "model.day_accuracy",
    "model.day_accuracy_ceiling",
    *WINDOW_FIGURES,
    "model.ece",
)
NOW_FIGURES = ("runs.failed", SILENCE)
VERDICT, OVERALL, WARNING = "drift.verdict", {"space": "overall"}, 1.0
MOST_SHOWN = 20  # alerts
VOTING_NOW = timedelta(minutes=10)
SILENT_S = 900  # of the daemon: a busy one ticks at least every few minutes


def read_home(site: Site, principal: Principal) -> HomeOut:
    now = site.store.database.clock.now()
    points = let_silence_grow(site.store.metric_points.latest(NOW_FIGURES), now)
    running = site.store.heartbeats.find_recent(site.settings.dead_after_seconds)
    failed = count_failed_runs(points, now.date())
    jobs = [each.job for each in running]
    gate = site.store.gates.latest()
    stages = tuple(describe_stages(site.stages(), gate, jobs, failed, now.date()))
    champions = _read_champions(site)
    served = next((one.label for one in champions if one.kind == "reward_model"), None)
    figures = _read_figures(site, served)
    work = _read_work(site, now)
    alerts = _read_alerts(site, principal)
    n_alerts = 0 if alerts is None else site.store.alerts.count_open()
    automations = read_automations(site)
    last_gate = None if gate is None else describe_gate(site, gate)
    return HomeOut(
        measured_at=now,
        headline=write_headline(site, principal, champions, last_gate),
        attention=(
            *_find_stopped_work(stages, n_alerts, points, automations, failed),
            *_find_drift(site),
            *_find_low_accuracy(figures, served),
            *_find_toy_policy(site),
        ),
        next_steps=() if work.n_votes else tuple(_list_next_steps(site, principal)),
        stages=stages,
        next_run=_find_next_run(automations),
        champions=champions,
        figures=figures,
        work=work,
        spending=_read_spending(site),
        alerts=alerts,
        decision=_read_decision(site),
        gate=last_gate,
    )


def labels_alone(site: Site, principal: Principal) -> bool:
    """Whether the user votes without being blind, and no enabled user could vote blind."""
    return (
        principal.may(Permission.VOTES_CAST)
        and not any(
            user.disabled_at is None and is_blind(user.roles) for user in site.store.users.all()
        )
        and site.store.votes.newest_day_of(principal.user_id) is not None
    )


def _find_stopped_work(
    stages: Sequence[StageState],
    n_alerts: int,
    points: Sequence[MetricPoint],
    automations: AutomationsOut,
    failed_runs: Mapping[str, int],
) -> Iterator[Attention]:
    if n_alerts:
        yield Attention(text=f"{format_count(n_alerts, 'alert')} open", link="/alerts")
    if failed := [stage.stage for stage in stages if stage.state == "failed"]:
        names = ", ".join(failed).replace("_", " ")
        yield Attention(text=f"not made, because runs failed: {names}", link="/runs?state=failed")
    named = {job for stage in failed for job in STAGE_JOBS[stage]}
    if others := [
        f"{format_count(n, 'run')} of {job}" for job, n in failed_runs.items() if job not in named
    ]:
        yield Attention(text=f"failed today: {', '.join(others)}", link="/runs?state=failed")
    silence = next((p.value for p in points if p.name == SILENCE), None)
    if silence is not None and silence > SILENT_S:
        yield Attention(
            text=f"no sensor has ticked for {_describe_silence(silence)}: start the daemon or "
            "rlhf loop",
            link="/runs",
        )
    elif automations.daemon == "absent":
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
            "page Comparisons, or with `rlhf comparisons offer --all-unvoted`.",
            link="/comparisons",
            is_done=False,
        )
    else:
        yield NextStep(
            title="Collect comparisons",
            text="`rlhf run collection` writes prompts and completions and offers them; "
            "`rlhf import comparisons FILE --offer` takes your own.",
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
    found = [point for point in latest if point.day == newest]
    labels = {point.labels["reward_model"] for point in found}
    shown = served if served in labels else max(labels, default=None)
    return tuple(point for point in found if point.labels["reward_model"] == shown)


def _read_work(site: Site, now: datetime) -> WorkNow:
    counted = site.vote_counts()
    left = site.work()
    return WorkNow(
        n_votes=counted.n_votes,
        n_simulated=counted.n_simulated,
        n_votes_today=counted.by_day.get(now.date(), 0),
        newest_day=max(counted.by_day, default=None),
        n_voting_now=sum(at > now - VOTING_NOW for at in counted.last_at.values()),
        n_open=left.n_open,
        n_leased=left.n_leased,
    )


def _read_champions(site: Site) -> tuple[ChampionState, ...]:
    found = {
        kind: site.store.promotions.champion(f"{site.settings.project}.{kind}")
        for kind in ("reward_model", "policy")
    }
    known = {kind: promotion for kind, promotion in found.items() if promotion is not None}
    moments = [each.promoted_at for each in known.values()]
    days = find_vote_days(site.store, site.settings.project, moments)
    rates = {
        gate.candidate: gate.evaluation.win_rate
        for gate in site.store.gates.all()
        if gate.promoted and gate.evaluation
    }
    return tuple(
        ChampionState(
            **promotion.model_dump(),
            kind=kind,
            votes_until=find_votes_until(days, promotion.promoted_at),
            win_rate=rates.get(promotion.label),
        )
        for kind, promotion in known.items()
    )


def _find_next_run(automations: AutomationsOut) -> NextRun:
    due = [each for each in automations.items if each.kind == "schedule" and each.next_at]
    return NextRun(
        schedule=due[0] if due else None, hint=automations.hint, daemon=automations.daemon
    )


def _read_spending(site: Site) -> SpendingOut | None:
    spent = read_spending(site)
    return spent if spent.days else None


def _read_alerts(site: Site, principal: Principal) -> tuple[Alert, ...] | None:
    if not principal.may(Permission.ALERTS_READ):
        return None
    found = site.store.alerts.page(AlertFilter(state=["open"], limit=MOST_SHOWN))
    found += site.store.alerts.page(AlertFilter(state=["acknowledged"], limit=MOST_SHOWN))
    return tuple(found[:MOST_SHOWN])


def _read_decision(site: Site) -> DecisionOut | None:
    newest = site.store.decisions.latest()
    if newest is None:
        return None
    times = find_changes(site.store, [newest])
    return describe_decision(newest, site.store.decisions.find_answers(), times)
