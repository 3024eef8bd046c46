"""The composition root: builds Dagster's definitions from the settings."""

import os
import sys
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets import STAGES
from rlhf_pipeline.application.assets.delivery import with_defaults
from rlhf_pipeline.application.jobs.collection import collection, collection_schedule
from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.feedback import close_yesterday_schedule, feedback, learning
from rlhf_pipeline.application.jobs.gate_decision import gate_decision
from rlhf_pipeline.application.jobs.housekeeping import housekeeping, housekeeping_schedule
from rlhf_pipeline.application.jobs.retraining import (
    policy_training,
    recalibration,
    recomputation,
    retraining,
)
from rlhf_pipeline.application.jobs.served_check import served_check
from rlhf_pipeline.application.jobs.simulated_voting import (
    simulated_voting,
    simulated_voting_schedule,
)
from rlhf_pipeline.application.resources import resources_for
from rlhf_pipeline.application.resources.run_logs import use_run_logger
from rlhf_pipeline.application.sensors.alerts import alerts_sensor
from rlhf_pipeline.application.sensors.gate import gate_sensor
from rlhf_pipeline.application.sensors.learning import learning_sensor
from rlhf_pipeline.application.sensors.paused_runs import paused_runs_sensor
from rlhf_pipeline.application.sensors.replay import replay_sensor
from rlhf_pipeline.application.sensors.retraining import retraining_sensor
from rlhf_pipeline.application.sensors.served_check import served_check_sensor
from rlhf_pipeline.application.sensors.votes import votes_sensor
from rlhf_pipeline.core.config import (
    Settings,
    project_folder,
    share_cores,
    silence_telemetry,
)
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import homes
from rlhf_pipeline.watch.telemetry.logs import configure_logs


def definitions_for(settings: Settings, **overrides: Any) -> dg.Definitions:
    """The definitions of one project. Sensors and schedules start running unless `sensors_running`
    is false.
    """
    on = settings.sensors_running
    sensor_status = dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED
    schedule_status = dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED
    simulated = settings.annotators == "simulated"
    loop = _loop_settings(settings)
    schedules = [
        collection_schedule(settings, loop, schedule_status),
        close_yesterday_schedule(settings, loop, schedule_status),
        housekeeping_schedule(loop, schedule_status),
    ]
    if simulated:
        schedules.append(simulated_voting_schedule(settings, loop, schedule_status))
    sensors = [
        votes_sensor,
        replay_sensor,
        learning_sensor,
        retraining_sensor,
        gate_sensor,
        served_check_sensor,
        paused_runs_sensor,
        alerts_sensor,
    ]
    return dg.Definitions(
        assets=[
            with_defaults(stage, loop.given.get(stage.key.to_user_string(), {}))
            if isinstance(stage, dg.AssetsDefinition)
            else stage
            for stage in STAGES
        ],
        jobs=[
            collection,
            feedback,
            learning,
            retraining,
            recalibration,
            recomputation,
            policy_training,
            gate_decision,
            served_check,
            housekeeping,
            *([simulated_voting] if simulated else []),
        ],
        schedules=schedules,
        sensors=[sensor(settings, sensor_status) for sensor in sensors],
        resources=resources_for(settings) | overrides,
        executor=light_executor,
    )


def _loop_settings(settings: Settings) -> LoopSettings:
    """Those of the file; while it is invalid, the defaults, so that the UI loads and ticks and runs
    show the error.
    """
    try:
        return LoopSettings.read(settings)
    except ConfigurationError as cause:
        print(f"The settings cannot be used. {cause}", file=sys.stderr)
        return LoopSettings()


silence_telemetry()
share_cores()
settings = Settings.read(folder=project_folder())
configure_logs(settings)
use_run_logger(settings)
homes.refuse_broken(settings)
homes.refuse_other_dagster_home(settings, os.environ)
defs = definitions_for(settings)
