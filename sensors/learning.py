"""The learning sensor: a reward model is fitted once enough comparisons were voted on."""

import dagster as dg

from jobs.feedback import learning
from jobs.loop import read_loop
from rlhf_pipeline.config import Settings
from rlhf_pipeline.learning import RETRY_AFTER_PAIRS, find_reason_to_wait, plan_next_fit
from rlhf_pipeline.records import utc_now
from sensors.runs import drop_started, resource_of, skip_during_replay, store_of


def learning_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="learning",
        job=learning,
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def learn(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests reward model and calibration when enough comparisons were voted on beyond what
        the latest model learnt from, unless a change waits for a clear cause.
        """
        store, loop = store_of(context, settings), read_loop(settings)
        if isinstance(loop, dg.SkipReason):
            return loop
        if waiting := skip_during_replay(store):
            return waiting
        due = plan_next_fit(settings, store)
        if due.shortage:
            return dg.SkipReason(due.shortage)
        now = resource_of(context, "now", lambda: utc_now)
        if reason := find_reason_to_wait(settings, store, loop.trigger, now=now()):
            return dg.SkipReason(reason)
        key = f"learning:{settings.project}:{due.after}:{due.n // RETRY_AFTER_PAIRS}"
        requests = drop_started(context.instance, [dg.RunRequest(run_key=key)])
        return (
            dg.SensorResult(run_requests=requests)
            if requests
            else dg.SkipReason(f"{key} was requested before")
        )

    return learn
