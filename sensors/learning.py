"""The learning sensor: a reward model is fitted once enough comparisons were voted on."""

import dagster as dg

from rlhf_pipeline.application.jobs.feedback import learning
from rlhf_pipeline.application.sensors.runs import (
    SensorTick,
    drop_started,
    loop_sensor,
    skip_during_replay,
)
from rlhf_pipeline.improve.reward_training import (
    RETRY_AFTER_PAIRS,
    find_reason_to_wait,
    plan_next_fit,
)


@loop_sensor("learning", learning)
def learning_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Requests reward model and calibration when enough comparisons were voted on beyond what
    the latest model learnt from, unless a change waits for a clear cause.
    """
    store, settings = tick.store, tick.settings
    if waiting := skip_during_replay(store):
        return waiting
    due = plan_next_fit(settings, store)
    if due.shortage:
        return dg.SkipReason(due.shortage)
    if reason := find_reason_to_wait(settings, store, tick.loop.trigger, now=tick.now):
        return dg.SkipReason(reason)
    key = f"learning:{settings.project}:{due.after}:{due.n // RETRY_AFTER_PAIRS}"
    requests = drop_started(tick.instance, [dg.RunRequest(run_key=key)])
    return (
        dg.SensorResult(run_requests=requests)
        if requests
        else dg.SkipReason(f"{key} was requested before")
    )
