"""The composition root: builds Dagster's definitions from the settings."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
# for `dagster dev -w /path/to/workspace.yaml` from any folder
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import dagster as dg  # noqa: E402

# backfill_policy is marked as beta; the version is pinned
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

from rlhf_pipeline.config import (  # noqa: E402
    Settings,
    collect_garbage_rarely,
    share_cores,
    silence_telemetry,
)

collect_garbage_rarely()

from assets import STAGES  # noqa: E402
from assets.delivery import with_defaults  # noqa: E402
from jobs.collection import collection, collection_schedule  # noqa: E402
from jobs.executors import light_executor  # noqa: E402
from jobs.feedback import close_yesterday_schedule, feedback, learning  # noqa: E402
from jobs.housekeeping import housekeeping, housekeeping_schedule  # noqa: E402
from jobs.retraining import policy_training, recalibration, recomputation, retraining  # noqa: E402
from jobs.simulated_voting import simulated_voting, simulated_voting_schedule  # noqa: E402
from resources import resources_for  # noqa: E402
from resources.run_logs import use_run_logger  # noqa: E402
from rlhf_pipeline.errors import ConfigurationError  # noqa: E402
from rlhf_pipeline.loop_settings import LoopSettings  # noqa: E402
from rlhf_pipeline.store import Store, homes  # noqa: E402
from rlhf_pipeline.telemetry.logs import configure_logs  # noqa: E402
from sensors.alerts import alerts_sensor  # noqa: E402
from sensors.learning import learning_sensor  # noqa: E402
from sensors.paused_runs import paused_runs_sensor  # noqa: E402
from sensors.replay import replay_sensor  # noqa: E402
from sensors.retraining import retraining_sensor  # noqa: E402
from sensors.votes import votes_sensor  # noqa: E402


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
            housekeeping,
            *([simulated_voting] if simulated else []),
        ],
        schedules=schedules,
        sensors=[sensor(settings, sensor_status) for sensor in sensors],
        resources=resources_for(settings) | overrides,
        executor=light_executor,
    )


def _loop_settings(settings: Settings) -> LoopSettings:
    """Those of the file; while it is invalid, the latest stored version, so that the UI loads and
    ticks and runs show the error.
    """
    try:
        return LoopSettings.read(settings)
    except ConfigurationError as cause:
        print(f"The settings cannot be used. {cause}", file=sys.stderr)
        with Store.of_home(settings) as store:
            return LoopSettings(store.loop_settings.latest().given)


silence_telemetry()
share_cores()
settings = Settings.read(folder=ROOT)
configure_logs(settings)
use_run_logger(settings)
homes.refuse_broken(settings)
homes.refuse_other_dagster_home(settings, os.environ)
defs = definitions_for(settings)
