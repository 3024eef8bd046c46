"""Checks that the server of the settings answers with the judged version."""

import dagster as dg

from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.served_check import check_served
from rlhf_pipeline.learn.champions import Champions


@dg.op(description="Compares tokens and log probabilities of what serves with those frozen.")
def compare_with_judged(
    context: dg.OpExecutionContext,
    champions: dg.ResourceParam[Champions],
    settings: dg.ResourceParam[Settings],
) -> None:
    check = check_served(champions, settings)
    if check is not None:
        context.log.info(f"{check.version}: {check.state}. {check.reason}.")


@dg.job(
    description="Checks that the server answers with the version that was judged.",
    executor_def=light_executor,
)
def served_check() -> None:
    compare_with_judged()
