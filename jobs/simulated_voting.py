"""Simulated voting: a seeded pool votes on a day's comparisons, where annotators are simulated."""

from collections.abc import Callable
from datetime import date

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.loop import daily_schedule
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store

SimulatedVotes = Callable[[pd.DataFrame, dict[str, str | None], str], list[NewVote]]


class VotingConfig(dg.Config):
    day: str = Field(description="UTC day whose comparisons are voted on, YYYY-MM-DD")


@dg.op(
    description="Casts the pool's votes through the function that casts all votes, marked as "
    "simulated."
)
def cast_simulated_votes(
    context: dg.OpExecutionContext,
    config: VotingConfig,
    store: dg.ResourceParam[Store],
    settings: dg.ResourceParam[Settings],
    annotators: dg.ResourceParam[SimulatedVotes],
) -> None:
    comparisons = store.comparisons.for_days([config.day])
    files = Artefacts(settings.frames)
    # a repeat may be of an earlier day's prompt
    prompts = files.read_days("prompts", files.days("prompts"))
    references = {
        p: None if pd.isna(r) else r
        for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
    }
    votes = annotators(comparisons, references, config.day)
    # A key is one annotator's vote on one comparison that day. A vote under a known key is kept:
    # with other settings of the annotators it would be another one.
    stored_keys = store.imports.find_known_keys([vote.idempotency_key for vote in votes])
    store.votes.cast_many([vote for vote in votes if vote.idempotency_key not in stored_keys])
    note = f", {len(stored_keys)} of them cast before and kept" if stored_keys else ""
    context.log.info(
        f"{format_count(len(votes), 'simulated vote')} on "
        f"{format_count(len(comparisons), 'comparison')} of {config.day}{note}."
    )


@dg.job(
    description="Simulated annotators vote on a day's comparisons.", executor_def=light_executor
)
def simulated_voting() -> None:
    cast_simulated_votes()


def simulated_voting_schedule(
    settings: Settings, loop: LoopSettings, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    def request(day: date) -> dg.RunRequest:
        config = dg.RunConfig(ops={"cast_simulated_votes": VotingConfig(day=f"{day}")})
        return dg.RunRequest(run_key=f"voting:{day}", run_config=config)

    return daily_schedule(
        "simulated_voting_daily",
        simulated_voting,
        loop.schedules.cron("simulated_voting"),
        request,
        description="Simulated annotators vote, after the morning's collection.",
        settings=settings,
        status=status,
    )
