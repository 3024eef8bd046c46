"""Collection: makes a day's prompts, completions and comparisons before people start to vote."""

import dagster as dg

from jobs.executors import light_executor

collection = dg.define_asset_job(
    "collection",
    selection=["prompts", "completions", "comparisons"],
    description="Prompts → completions → comparisons of a day, published for voting with the "
    "champion's predictions.",
    executor_def=light_executor,
)


def collection_schedule(status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    @dg.schedule(
        job=collection, cron_schedule="0 5 * * *", execution_timezone="UTC", default_status=status
    )
    def collection_morning(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """Today's comparisons at 05:00 UTC."""
        day = context.scheduled_execution_time.date().isoformat()
        return dg.RunRequest(run_key=f"collection:{day}", partition_key=day)

    return collection_morning
