"""Feedback: a day's votes, reflection log and drift report. Learning: pairs and a reward model."""

from datetime import timedelta

import dagster as dg

from jobs.executors import light_executor

feedback = dg.define_asset_job(
    "feedback",
    selection=["votes", "reflection_log", "drift_report"],
    description="Log of a day's votes → reflection log → drift report.",
    executor_def=light_executor,
)

learning = dg.define_asset_job(
    "learning",
    selection=["preference_pairs", "annotator_model", "reward_model", "calibration"],
    description="Preference pairs of all votes; annotator model, reward model and its calibration "
    "refitted.",
    executor_def=light_executor,
)


def close_yesterday_schedule(status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    @dg.schedule(
        job=feedback, cron_schedule="30 0 * * *", execution_timezone="UTC", default_status=status
    )
    def close_yesterday(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """Yesterday's feedback at 00:30 UTC, so that a day without votes is reported too."""
        day = (context.scheduled_execution_time.date() - timedelta(days=1)).isoformat()
        return dg.RunRequest(run_key=f"close:{day}", partition_key=day)

    return close_yesterday
