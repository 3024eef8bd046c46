"""Feedback: a day's votes, reflection log and drift report. Learning: pairs and a reward model."""

from datetime import date, timedelta
from typing import Any

import dagster as dg

from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.loop import RETRIED, daily_schedule
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.loop_settings import LoopSettings

feedback = dg.define_asset_job(
    "feedback",
    selection=["votes", "reflection_log", "drift_report"],
    description="Log of a day's votes → reflection log → drift report.",
    executor_def=light_executor,
    tags=RETRIED,
)

learning = dg.define_asset_job(
    "learning",
    selection=["preference_pairs", "annotator_model", "reward_model", "calibration"],
    description="Preference pairs of all votes; annotator model, reward model and its calibration "
    "refitted.",
    executor_def=light_executor,
    tags=RETRIED,
)


def learning_config(up_to_seq: int, *, allow_uncalibrated: bool) -> dict[str, Any]:
    """Run configuration in which every learning stage uses the votes up to `up_to_seq`: a run that
    comes late or is repeated from its failed step finds labels and pairs of the same votes.
    """
    votes_config = {"config": {"up_to_seq": up_to_seq}}
    calibration = {"config": {"up_to_seq": up_to_seq, "allow_uncalibrated": allow_uncalibrated}}
    stages = dict.fromkeys(("preference_pairs", "annotator_model", "reward_model"), votes_config)
    return {"ops": stages | {"calibration": calibration}}


def close_yesterday_schedule(
    settings: Settings, loop: LoopSettings, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    def request(today: date) -> dg.RunRequest | dg.SkipReason:
        yesterday = today - timedelta(days=1)
        if yesterday < settings.start_day:
            return dg.SkipReason(f"{yesterday} is before the first day, {settings.start_day}.")
        return dg.RunRequest(run_key=f"close:{yesterday}", partition_key=f"{yesterday}")

    return daily_schedule(
        "close_yesterday",
        feedback,
        loop.schedules.cron("close_yesterday"),
        request,
        description="Yesterday's feedback, so that a day without votes is reported too.",
        settings=settings,
        status=status,
    )
