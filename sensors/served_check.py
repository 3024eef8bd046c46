"""The served check sensor: compares a model server with the judged version, at first and hourly.

What this machine serves is checked by the web app, which holds it in memory.
"""

import dagster as dg

from rlhf_pipeline.application.jobs.served_check import served_check
from rlhf_pipeline.application.sensors.runs import SensorTick, drop_started, loop_sensor

ON_THIS_MACHINE = ("local", "template")


@loop_sensor("served_check", served_check)
def served_check_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Requests a check of the model server after a promotion, then each hour, while it is meant to
    serve a policy of this project.
    """
    settings = tick.settings
    if settings.completion_backend in ON_THIS_MACHINE:
        return dg.SkipReason("completions come from this machine")
    history = tick.store.promotions.history(f"{settings.project}.policy")
    if len(history) < 2 and not (history and settings.load_adapters):
        return dg.SkipReason("no trained policy is deployed")
    key = f"served_check:{history[-1].label}:{len(history)}:{tick.now:%Y-%m-%dT%H}"
    requests = drop_started(tick.instance, [dg.RunRequest(run_key=key)])
    return (
        dg.SensorResult(run_requests=requests)
        if requests
        else dg.SkipReason(f"{key} was requested before")
    )
