"""The retraining sensor: drift and calibration events become one decision, a fire decision becomes
one run.

What fires is decided by `rlhf_pipeline.improve.retraining.triggers.decide`, in one transaction of
the store. Every tick requests the pending fire decisions under a run key of decision and attempt,
and a decision counts as submitted only once its run exists. So a change gives one retraining: none
is lost between decision and submission, none doubled by a repeated tick, a cursor reset or a second
daemon.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets.retraining_decision import (
    ATTEMPT_TAG,
    DECISION_TAG,
    decision_event,
    describe,
)
from rlhf_pipeline.application.jobs.feedback import learning_config
from rlhf_pipeline.application.jobs.loop import ENDED_STATUSES
from rlhf_pipeline.application.jobs.retraining import (
    policy_training,
    recalibration,
    recalibration_config,
    recomputation,
    retraining,
)
from rlhf_pipeline.application.sensors.runs import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    RUN_KEY_TAG,
    STEP_TAG,
    SUBMISSION_LEASE,
    SensorTick,
    find_run,
    loop_sensor,
    skip_during_replay,
    status_of,
)
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import TriggerDecision
from rlhf_pipeline.improve.retraining.triggers import RECOMPUTING_REMEDIES, decide
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.rounds import report_changes


@loop_sensor("retraining", retraining, recalibration, recomputation, policy_training, is_quick=True)
def retraining_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Records outcomes of earlier decisions, decides on new events, requests pending runs."""
    store, settings = tick.store, tick.settings
    _record_outcomes(settings.project, tick.instance, store)
    if waiting := skip_during_replay(store):
        return waiting
    champion = store.promotions.champion(settings.reward_model)
    decision = store.decisions.apply_rule(
        partial(decide, params=tick.loop.trigger),
        now=tick.now,
        champion=champion.label if champion else None,
    )
    # a hold that claims nothing new is not stored
    is_new = decision is not None and decision.decision_id is not None
    # now, and not with the next tick of the alerts sensor: a demo and `rlhf run` have none
    report_changes(store, settings, tick.now)
    requests = list(_request_pending(settings, tick.instance, store))
    # commands that order or answer know no Dagster
    begun = [
        store.decisions.get(int(request.tags[DECISION_TAG]))
        for request in requests
        if request.tags[ATTEMPT_TAG] == "1"
    ]
    decisions = [decision] if decision and is_new else []
    reported = {decision.stored_id: decision for decision in (*decisions, *begun)}
    skip = describe(decision) if decision else "no open drift or calibration event"
    return dg.SensorResult(
        run_requests=requests,
        asset_events=[decision_event(decision) for decision in reported.values()],
        skip_reason=None if requests else skip,
    )


def _record_outcomes(project: str, instance: dg.DagsterInstance, store: Store) -> None:
    """Mark decisions as submitted, finished or to be retried, by the runs that they have."""
    for pending in store.training_jobs.pending():
        run = find_run(instance, run_key(project, pending))
        if run is not None:
            store.training_jobs.mark_submitted(pending.stored_id, pending.attempt, run.run_id)
    for decision in store.training_jobs.submitted():
        if _is_replayed(instance, decision):
            continue  # sensors/replay.py records those
        status = status_of(instance, decision.run_id)
        if status == dg.DagsterRunStatus.SUCCESS:
            store.training_jobs.mark_finished(
                decision.stored_id, succeeded=True, attempt=decision.attempt
            )
        elif status not in ENDED_STATUSES:
            continue
        elif _is_launched(decision):  # its author sees the failure, and repeats it or not
            store.training_jobs.mark_finished(
                decision.stored_id, succeeded=False, error="the run failed", attempt=1
            )
        else:
            store.training_jobs.retry(decision.stored_id, attempt=decision.attempt)
    _record_late_successes(project, instance, store)


def _record_late_successes(project: str, instance: dg.DagsterInstance, store: Store) -> None:
    """Mark as succeeded the jobs whose gate decided before their cancellation was seen."""
    orders = {run_key(project, order): order for order in store.training_jobs.failed_orders()}
    if not orders:
        return
    successes = dg.RunsFilter(
        tags={RUN_KEY_TAG: list(orders)}, statuses=[dg.DagsterRunStatus.SUCCESS]
    )
    for run in instance.get_runs(successes):
        store.training_jobs.mark_finished(orders[run.tags[RUN_KEY_TAG]].stored_id, succeeded=True)


def _request_pending(
    settings: Settings, instance: dg.DagsterInstance, store: Store
) -> Iterator[dg.RunRequest]:
    """A run for each pending fire decision that has none and that no other daemon is submitting."""
    for pending in store.training_jobs.pending():
        if pending.evidence.get("wait_until_seq", 0) > store.votes.max_seq():
            continue
        key = run_key(settings.project, pending)
        recomputes = pending.remedy in RECOMPUTING_REMEDIES
        days = _reported_days(settings, store, pending) if recomputes else []
        if recomputes and not days:  # nothing rests on these votes yet
            store.training_jobs.mark_finished(pending.stored_id, succeeded=True)
        elif find_run(instance, key) is None and store.training_jobs.lease(
            pending.stored_id, pending.attempt, now=datetime.now(UTC), lease=SUBMISSION_LEASE
        ):
            tags = {DECISION_TAG: str(pending.decision_id), ATTEMPT_TAG: str(pending.attempt)}
            if len(days) > 1:
                tags |= {RANGE_START_TAG: days[0], RANGE_END_TAG: days[-1]}
            yield dg.RunRequest(
                run_key=key,
                job_name=choose_job(pending),
                run_config=run_config(pending),
                tags=tags,
                partition_key=days[0] if len(days) == 1 else None,
            )


def choose_job(decision: TriggerDecision) -> str:
    """The name of the job that carries out a fire decision."""
    if decision.order is not None:
        return policy_training.name
    if decision.remedy in RECOMPUTING_REMEDIES:
        return recomputation.name
    return recalibration.name if decision.remedy == "refit_calibrator" else retraining.name


def _reported_days(settings: Settings, store: Store, decision: TriggerDecision) -> list[str]:
    """The days with a drift report and a vote since the first one that the decision leaves out."""
    assert decision.quarantine is not None
    voted = store.votes.touched_days(decision.quarantine.from_seq - 1)
    reported = Artefacts(settings.frames).days("drift_report")
    return sorted({str(vote_day.day) for vote_day in voted} & set(reported))


def _is_launched(decision: TriggerDecision) -> bool:
    """Whether a person launched the retraining; what they answered or quarantined is tried again
    as the trigger's decisions are.
    """
    return decision.actor is not None and decision.remedy is None


def _is_replayed(instance: dg.DagsterInstance, decision: TriggerDecision) -> bool:
    run = instance.get_run_by_id(decision.run_id) if decision.run_id else None
    return run is not None and STEP_TAG in run.tags


def run_key(project: str, decision: TriggerDecision) -> str:
    return f"retraining:{project}:{decision.decision_id}:{decision.attempt}"


def run_config(decision: TriggerDecision) -> dict[str, Any]:
    """Every learning stage uses the votes that the decision knew.

    The change itself is in the store, recorded with the decision: one that is retracted meanwhile
    does not count. A change that was noticed soon leaves few pairs to calibrate with: a better
    model then serves uncalibrated, and the learning sensor fits it again a few pairs later.
    """
    if decision.order is not None:  # nothing before the retraining set is made anew
        return {"ops": {stage: {"config": own} for stage, own in decision.order.stages.items()}}
    up_to_seq = decision.evidence.get("looked_at", {}).get("max_seq")
    up_to_seq = decision.evidence.get("wait_until_seq", up_to_seq)
    if up_to_seq is None:
        return {}
    if decision.remedy in RECOMPUTING_REMEDIES:  # detectors do not read less than they have read
        return {"ops": {"preference_pairs": {"config": {"up_to_seq": up_to_seq}}}}
    if decision.remedy == "refit_calibrator":
        return recalibration_config(up_to_seq)
    return learning_config(up_to_seq, allow_uncalibrated=True)
