"""The retraining sensor: drift and calibration events become one decision, a fire decision becomes
one run.

The decision is made in one transaction of the store; every tick yields the pending ones under a run
key of decision and attempt, and a decision counts as submitted only once its run is found. So a
change gives one retraining: none is lost between decision and submission, none doubled by a
re-tick, a cursor reset or a second daemon.
"""

from datetime import UTC, datetime
from functools import partial

import dagster as dg

from jobs.retraining import DECISION_TAG, retraining
from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import TriggerDecision, utc_now
from rlhf_pipeline.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.store import Store
from sensors.runs import (
    STEP_TAG,
    SUBMISSION_LEASE,
    find_run,
    resource_of,
    skip_during_replay,
    status_of,
    store_of,
)

ATTEMPT_TAG = "rlhf/attempt"
MAX_ATTEMPTS = 3


def retraining_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    model_name = f"{settings.project}.reward_model"

    @dg.sensor(
        name="retraining",
        job=retraining,
        minimum_interval_seconds=settings.sensor_seconds,
        default_status=status,
    )
    def retrain(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Settles what ran, decides on new events, requests what is pending."""
        store, now = store_of(context, settings), resource_of(context, "now", lambda: utc_now)
        if store.decisions.pending_fires() or store.decisions.submitted_fires():
            _settle_decisions(context.instance, store)
        if waiting := skip_during_replay(store):
            return waiting
        champion = store.promotions.champion(model_name)
        label = f"{champion.model_name}@{champion.version}" if champion else None
        decision = store.decisions.decide(
            partial(decide, params=TriggerParams()), now=now(), champion=label
        )
        requests = [
            make_request(pending)
            for pending in store.decisions.pending_fires()
            if find_run(context.instance, run_key(settings.project, pending)) is None
            and store.decisions.lease(
                pending.decision_id, pending.attempt, now=datetime.now(UTC), lease=SUBMISSION_LEASE
            )
        ]
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{decision.action}: {'; '.join(decision.reasons)}"
            if decision
            else "no open drift or calibration event"
        )

    def make_request(decision: TriggerDecision) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=run_key(settings.project, decision),
            run_config=run_config(decision),
            tags={DECISION_TAG: str(decision.decision_id), ATTEMPT_TAG: str(decision.attempt)},
        )

    def _settle_decisions(instance: dg.DagsterInstance, store: Store) -> None:
        for pending in store.decisions.pending_fires():
            run = find_run(instance, run_key(settings.project, pending))
            if run is not None:
                store.decisions.mark_submitted(pending.decision_id, pending.attempt, run.run_id)
        for decision in store.decisions.submitted_fires():
            if _is_replayed(instance, decision):
                continue  # the replay's own, sensors/replay.py
            status = status_of(instance, decision.run_id)
            if status == dg.DagsterRunStatus.SUCCESS:
                store.decisions.mark_finished(
                    decision.decision_id, succeeded=True, attempt=decision.attempt
                )
            elif status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
                store.decisions.retry(
                    decision.decision_id, max_attempts=MAX_ATTEMPTS, attempt=decision.attempt
                )

    return retrain


def _is_replayed(instance: dg.DagsterInstance, decision: TriggerDecision) -> bool:
    run = instance.get_run_by_id(decision.run_id) if decision.run_id else None
    return run is not None and STEP_TAG in run.tags


def run_key(project: str, decision: TriggerDecision) -> str:
    return f"retraining:{project}:{decision.decision_id}:{decision.attempt}"


def run_config(decision: TriggerDecision) -> dict[str, object]:
    """All that learn know the votes that the decision knew: a run that comes late, or is done again
    from its failed step, finds labels of the same votes as pairs.

    The change itself is in the store, recorded with the decision: one that is retracted meanwhile
    does not count. A change that was noticed soon leaves few pairs to calibrate with: a better
    model then serves uncalibrated, and the learning sensor fits it again `retry_after_pairs` later.
    """
    known = decision.evidence.get("looked_at", {}).get("max_seq")
    if known is None:
        return {}
    learning: dict[str, object] = {"up_to_seq": known}
    return {
        "ops": {
            "preference_pairs": {"config": learning},
            "annotator_model": {"config": learning},
            "reward_model": {"config": learning},
            "calibration": {"config": learning | {"allow_uncalibrated": True}},
        }
    }
