"""How often alerts are right: 100 simulated incidents, and as many quiet projects beside them.

    python benchmarks/bench_alerts.py [--incidents 100]

Each project has one kind of trouble, or comes close to it: votes whose taste changes or not (worlds
of the laboratory, as the trigger reads them), estimates above or below their threshold drawn with
sampling noise, jobs that stay failed or are repaired by their retry. Sizes are drawn from ranges:
incidents from 1.25 times the threshold on, quiet projects up to the threshold itself. Every round
goes through the store and the default rules. An alert is right if its rule is that of the incident
and it opens while the incident lasts; a second one for the same incident is wrong.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import dagster as dg  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.alert_rounds import (  # noqa: E402
    AlertPlan,
    advance_alerts,
    gather_readings,
    measure_now,
    record_tick,
    report_changes,
    watch_daemon,
)
from rlhf_pipeline.alerts.findings import Reading  # noqa: E402
from rlhf_pipeline.calibration.summary import calibration_metrics  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402
from rlhf_pipeline.intervals import interval_of_share  # noqa: E402
from rlhf_pipeline.laboratory.changed_or_steady import (  # noqa: E402
    CHANGE_AT,
    CHANGED_OR_STEADY,
)
from rlhf_pipeline.laboratory.trigger_runs import find_responses  # noqa: E402
from rlhf_pipeline.monitoring import MetricPoint  # noqa: E402
from rlhf_pipeline.records import DriftEvent, GateCheck, GateDecision  # noqa: E402
from rlhf_pipeline.retraining.triggers import TriggerParams, decide  # noqa: E402
from rlhf_pipeline.simulation.vote_worlds import draw_votes  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from sensors.run_facts import RunMemory, read_schedules  # noqa: E402

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
DRIFT_SHARE = 0.28  # of the incidents
MODEL = {"reward_model": "demo.reward_model@1"}
PER_VOTE = timedelta(minutes=5)
PREDICTIONS, PAIRS = 1500, 400  # a calibration window, a day's shared comparisons


@dataclass
class SimulatedProject:
    """A project of one store, its clock, and when its incident lasts."""

    store: Store
    settings: Settings
    rng: np.random.Generator
    now: datetime = START
    began: datetime | None = None
    ended: datetime | None = None
    rule: str = ""
    plan: AlertPlan = field(init=False)

    def __post_init__(self) -> None:
        self.plan = AlertPlan.read(self.settings, self.store)

    def pass_time(self, **time: float) -> None:
        self.now += timedelta(**time)

    def look(self, *points: MetricPoint, readings: Sequence[Reading] = ()) -> None:
        """One round of the sensor over these figures."""
        self.store.metric_points.put(points)
        stored = gather_readings(self.store, self.settings, self.plan, self.now, budget=100.0)
        advance_alerts(self.store, self.plan, [*stored, *readings], self.now)

    def point(self, name: str, value: float, **more: object) -> MetricPoint:
        return MetricPoint.model_validate(
            {"day": self.now.date(), "name": name, "value": value, "measured_at": self.now} | more
        )

    def share(self, name: str, p: float, n: int, labels: dict[str, str]) -> MetricPoint:
        """An estimated share with Wilson's interval."""
        drawn = interval_of_share(self.rng.binomial(n, p) / n, n)
        return MetricPoint.of_interval(self.now.date(), name, drawn, self.now, labels)

    def begin(self) -> None:
        self.began = self.now

    def end(self) -> None:
        self.ended = self.now


Kind = Callable[[SimulatedProject, bool], None]


def change_taste(project: SimulatedProject, happens: bool) -> None:
    """The retrainings that the trigger starts in a world of the laboratory."""
    seed = int(project.rng.integers(10_000)) * 2 + happens
    if happens:
        project.began = START + CHANGE_AT * PER_VOTE
    world = CHANGED_OR_STEADY.draw_world(seed)
    # What follows the retraining depends on what the new model has learnt, which no world draws.
    until = CHANGE_AT if happens else None
    responses = find_responses(world, draw_votes(world, seed), seed, until=until)
    fires = [response for response in responses if response.retrains]
    for number, fire in enumerate(fires, 1):
        project.now = START + fire.seq * PER_VOTE
        label = f"demo.reward_model@{number}"
        event = DriftEvent(
            kind="drift",
            model_version=label,
            detector="rise_test",
            params_hash="p",
            stream="errors",
            seq=fire.seq,
            day=project.now.date(),
            evidence={},
        )
        project.store.events.add([event])
        params = TriggerParams(min_new_votes=0, cool_down_hours=0)
        decided = project.store.decisions.decide(
            partial(decide, params=params), now=project.now, champion=label
        )
        assert decided is not None
        assert decided.action == "fire", decided.reasons
        report_changes(project.store, project.settings, project.now)
        project.look()
        project.store.decisions.mark_finished(decided.stored_id, succeeded=True)
        project.pass_time(minutes=1)
        project.look()


def miscalibrate(project: SimulatedProject, happens: bool) -> None:
    gap = project.rng.uniform(1.25, 2.5) * 0.08 if happens else project.rng.uniform(0, 0.08)
    for day in range(6):
        if happens and day == 2:
            project.begin()
        wrong_by = gap if not happens or day >= 2 else 0.02
        stated = project.rng.uniform(0.6, 0.95, PREDICTIONS)
        right = project.rng.random(PREDICTIONS) < stated - wrong_by
        found = calibration_metrics(stated, right.astype(int)).ece_debiased
        assert found is not None
        day_point = MetricPoint.of_interval(
            project.now.date(), "model.ece", found, project.now, MODEL
        )
        project.look(day_point)
        project.pass_time(days=1)


def lose_accuracy(project: SimulatedProject, happens: bool) -> None:
    gap = project.rng.uniform(1.5, 3) * 0.08 if happens else project.rng.uniform(0, 0.08)
    ceiling = project.rng.uniform(0.75, 0.9)
    for day in range(6):
        if happens and day == 2:
            project.begin()
        off = gap if not happens or day >= 2 else 0.02
        project.look(
            project.share("model.accuracy_ceiling", ceiling, PREDICTIONS, MODEL),
            project.share("model.accuracy", ceiling - off, PREDICTIONS, MODEL),
        )
        project.pass_time(days=1)


def disagree(project: SimulatedProject, happens: bool) -> None:
    rate = project.rng.uniform(0.3, 0.5) if happens else project.rng.uniform(0.6, 0.85)
    for day in range(6):
        if happens and day == 2:
            project.begin()
        now = rate if not happens or day >= 2 else 0.75
        project.look(project.share("agreement.rate", now, PAIRS, {}))
        project.pass_time(days=1)


def let_wait(project: SimulatedProject, happens: bool, *, metric: str, limit: float) -> None:
    """An age in hours that grows until somebody acts."""
    longest = limit * (project.rng.uniform(1.25, 2) if happens else project.rng.uniform(0.4, 1))
    for hours in np.arange(0, longest, max(1.0, limit / 24)):
        if hours > limit and project.began is None:
            project.begin()
        labels = {"labels": {"asset": "drift_report"}} if metric == "freshness.hours" else {}
        # people vote on other comparisons
        voted = [] if metric == "votes.idle_hours" else [project.point("votes.idle_hours", 1.0)]
        project.look(project.point(metric, float(hours), **labels), *voted)
        project.pass_time(hours=max(1.0, limit / 24))
    project.end()
    if metric == "queue.oldest_hours":  # nothing waits any more
        measure_now(project.store, project.now)
        project.look()
    else:
        project.look(project.point(metric, 0.0, **labels))


def spend(project: SimulatedProject, happens: bool) -> None:
    most = project.rng.uniform(85, 100) if happens else project.rng.uniform(20, 80)
    for share in np.linspace(0, 1, 12):
        spent = float(most * share)
        if spent > 80 and project.began is None:
            project.begin()
        project.look(project.point("spend.amount", spent, labels={"lane": "p/m"}))
        project.pass_time(hours=1)


def fail_runs(project: SimulatedProject, happens: bool) -> None:
    """A job that stays failed, or one whose retry succeeds within minutes."""
    lasts = project.rng.uniform(15, 120) if happens else project.rng.uniform(1, 4.5)
    failed_at = project.now
    project.begin() if happens else None
    while (minutes := (project.now - failed_at).total_seconds() / 60) < lasts + 3:
        fails = minutes < lasts
        reading = Reading(
            "runs.last_failed", failed_at, 1.0, {"job": "feedback"}, detail="votes: no such day"
        )
        project.look(readings=[reading] if fails else [])
        project.pass_time(minutes=1 if minutes < 10 else 10)


def miss_schedule(project: SimulatedProject, happens: bool) -> None:
    late = project.rng.uniform(2, 10) if happens else project.rng.uniform(0, 0.95)
    schedule = dg.ScheduleDefinition(
        name="collection_morning", job_name="collection", cron_schedule="0 7 * * *"
    )
    memory = RunMemory(since=project.now, read_until=project.now)
    due = project.now.replace(hour=7)
    while project.now < due + timedelta(hours=4):
        if project.now >= due + timedelta(hours=late):
            memory.scheduled["collection_morning"] = due + timedelta(hours=late)
        if happens and project.now >= due and project.began is None:
            project.begin()
        project.look(readings=read_schedules([schedule], memory, project.now))
        project.pass_time(minutes=10)


def kill_daemon(project: SimulatedProject, happens: bool) -> None:
    """No tick for long, or only until a restart has finished."""
    silent = project.rng.uniform(8, 60) if happens else project.rng.uniform(1, 4.5)
    record_tick(project.store, project.now)
    project.begin() if happens else None
    minutes = 0.0
    while minutes < silent:
        project.pass_time(minutes=1)
        minutes += 1
        if minutes < silent:
            watch_daemon(project.store, project.settings, project.now)
    record_tick(project.store, project.now)
    project.look(readings=[Reading("daemon.silent_seconds", project.now, 0.0)])


def refuse_candidate(project: SimulatedProject, happens: bool) -> None:
    project.begin() if happens else None
    check = GateCheck(name="win_rate", passed=not happens, reason="win rate 0.47 is below 0.5")
    project.store.gates.record(
        GateDecision(
            candidate="demo.policy@2",
            champion="demo.policy@1",
            promoted=not happens,
            checks=(check,),
            decided_at=project.now,
        )
    )
    for _ in range(3):
        project.look()
        project.pass_time(hours=1)


KINDS: dict[str, Kind] = {
    "drift": change_taste,
    "calibration_error": miscalibrate,
    "accuracy_gap": lose_accuracy,
    "agreement": disagree,
    "queue_age": partial(let_wait, metric="queue.oldest_hours", limit=72.0),
    "no_votes": partial(let_wait, metric="votes.idle_hours", limit=24.0),
    "stale_asset": partial(let_wait, metric="freshness.hours", limit=50.0),
    "spend": spend,
    "run_failed": fail_runs,
    "schedule_missed": miss_schedule,
    "daemon_silent": kill_daemon,
    "candidate_refused": refuse_candidate,
}


@dataclass
class Score:
    """Incidents that had an alert, and alerts that had an incident."""

    n_incidents: int = 0
    n_found: int = 0
    n_alerts: int = 0

    def add(self, other: "Score") -> None:
        self.n_incidents += other.n_incidents
        self.n_found += other.n_found
        self.n_alerts += other.n_alerts


def simulate(folder: Path, rule: str, seed: int, happens: bool) -> Score:
    name = f"{rule}-{seed}-{int(happens)}"
    settings = Settings(home=folder, project=name)
    with Store.open(f"sqlite:///{folder / 'store.db'}", organization="o", project=name) as store:
        number = list(KINDS).index(rule)
        rng = np.random.default_rng([seed, number, happens])
        project = SimulatedProject(store, settings, rng, rule=rule)
        KINDS[rule](project, happens)
        alerts = store.alerts.page(limit=1000)
    right = [
        alert
        for alert in alerts
        if alert.rule == rule
        and project.began is not None
        and alert.opened_at >= project.began
        and (project.ended is None or alert.opened_at <= project.ended)
    ]
    return Score(n_incidents=int(happens), n_found=min(len(right), 1), n_alerts=len(alerts))


def count_by_rule(n: int) -> Iterator[tuple[str, int]]:
    n_drift = round(n * DRIFT_SHARE)
    yield "drift", n_drift
    others = [rule for rule in KINDS if rule != "drift"]
    for i, rule in enumerate(others):
        yield rule, (n - n_drift) // len(others) + (i < (n - n_drift) % len(others))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=100)
    n = parser.parse_args().incidents
    total, rows = Score(), []
    with tempfile.TemporaryDirectory() as folder:
        with Store.open(
            f"sqlite:///{Path(folder) / 'store.db'}", organization="o", project="first"
        ) as first:
            first.migrate()
        for rule, n_of_rule in count_by_rule(n):
            score = Score()
            for seed in range(n_of_rule):
                for happens in (True, False):
                    score.add(simulate(Path(folder), rule, seed, happens))
            wrong = score.n_alerts - score.n_found
            rows.append((rule, score.n_incidents, score.n_found, score.n_alerts, wrong))
            total.add(score)
    print_table(
        f"{total.n_incidents} incidents and as many quiet projects",
        ("rule", "incidents", "found", "alerts", "wrong alerts"),
        rows,
    )
    recall = interval_of_share(total.n_found / total.n_incidents, total.n_incidents)
    precision = interval_of_share(total.n_found / total.n_alerts, total.n_alerts)
    limits = Limits()
    print()
    limits.check(precision.value >= 0.9, f"precision {precision} (at least .90)")
    limits.check(recall.value >= 0.9, f"recall {recall} (at least .90)")
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
