"""The gate's decision on a candidate about which people were asked, by its sensor or by hand."""

import dagster as dg

from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.loop import RETRIED
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.gate_decisions import conclude, describe_reasons
from rlhf_pipeline.learn.champions import Champions


@dg.op(description="Promotes or refuses the candidate by people's votes, if they decide.")
def carry_out_verdict(
    context: dg.OpExecutionContext,
    champions: dg.ResourceParam[Champions],
    settings: dg.ResourceParam[Settings],
) -> None:
    decision = conclude(champions, settings)
    context.log.info(
        "No session of the gate has a verdict."
        if decision is None
        else f"{decision.candidate} {decision.verdict}: {describe_reasons(decision)}"
    )


@dg.job(
    description="The gate promotes or refuses a candidate by people's votes.",
    executor_def=light_executor,
    tags=RETRIED,
)
def gate_decision() -> None:
    carry_out_verdict()
