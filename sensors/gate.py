"""The gate sensor: asks people about a candidate, and requests the verdict once votes decide."""

import dagster as dg

from rlhf_pipeline.application.jobs.gate_decision import gate_decision
from rlhf_pipeline.application.sensors.runs import SensorTick, drop_started, loop_sensor
from rlhf_pipeline.improve.gate_sessions import advance


@loop_sensor("gate", gate_decision, is_quick=True)
def gate_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Offers the next batch of a session once the last one is in, and requests the gate's decision
    once the votes decide.
    """
    champion = tick.store.promotions.champion(f"{tick.settings.project}.policy")
    progress = advance(tick.store, champion.label if champion else None, tick.now)
    if progress is None:
        return dg.SkipReason("the gate asks nobody")
    if progress.verdict == "open":
        return dg.SkipReason(f"the gate has {progress.describe()} on {progress.candidate}")
    key = f"gate:{tick.settings.project}:{progress.session_id}"
    requests = drop_started(tick.instance, [dg.RunRequest(run_key=key)])
    return (
        dg.SensorResult(run_requests=requests)
        if requests
        else dg.SkipReason(f"{key} was requested before")
    )
