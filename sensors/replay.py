"""The replay sensor: imported days go through the loop one after another, oldest first."""

import dagster as dg

from jobs.feedback import feedback, learning
from jobs.loop import read_loop
from jobs.retraining import recalibration
from rlhf_pipeline.config import Settings
from sensors.replay_steps import Replay
from sensors.runs import store_of


def replay_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="replay",
        jobs=[feedback, learning, recalibration],
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def replay(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests the next step of the oldest imported day, one run after another."""
        store, loop = store_of(context, settings), read_loop(settings)
        if isinstance(loop, dg.SkipReason):
            return loop
        step = Replay(settings, context.instance, store).advance()
        if isinstance(step, dg.RunRequest):
            return dg.SensorResult(run_requests=[step])
        return dg.SkipReason(step.reason if step else "no imported day waits for its replay")

    return replay
