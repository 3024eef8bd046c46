"""The gate: promotes the candidate if it is measurably better than the champion."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    SCHEMA_CHECK,
    StageReport,
    deliver,
    unpartitioned_asset,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Evaluation, ModelVersion
from rlhf_pipeline.improve.evaluation import GateParams
from rlhf_pipeline.improve.evaluation import decide_promotion as decide
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store


class GateConfig(GateParams, dg.Config):
    """Thresholds of the promotion rules."""


@unpartitioned_asset("gate", "improve", "mlflow")
def gate(
    context: dg.AssetExecutionContext,
    config: GateConfig,
    evaluation: Evaluation,
    candidate_model: ModelVersion,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
) -> Iterator[Any]:
    """Decides by win rate, checkable answers, length and blocking checks, each with its reason, and
    moves the champion alias; a server loads its adapter. Does not use the truth of a simulation.
    """
    decision = decide(
        evaluation,
        config,
        failed_blocking_checks=[
            *_failed_checks(context.instance),
            *_list_mismatches(evaluation, candidate_model, champions),
        ],
    )
    decision = decision.model_copy(update={"registered": candidate_model, "run_id": context.run_id})
    if decision.promoted:
        fault = champions.serve(settings, candidate_model)
        decision = decision.model_copy(update={"not_served": fault})
    reasons = "; ".join(
        check.reason for check in decision.checks if check.passed is decision.promoted
    )
    yield from deliver(
        context,
        registry,
        decision,
        StageReport(
            headline=f"{decision.candidate} {decision.verdict}"
            + (f" ({decision.not_served})" if decision.not_served else "")
            + f": {reasons}",
            metrics={
                "promoted": float(decision.promoted),
                "n_failed": sum(not check.passed for check in decision.checks),
            },
            rows=pd.DataFrame([check.model_dump() for check in decision.checks]),
        ),
    )
    store.gates.record(decision)
    registry.set_version_tags(
        "policy",
        candidate_model.version,
        {
            "gate": decision.verdict if decision.promoted else "refused",
            "gate_reasons": reasons,
            "win_rate": f"{evaluation.win_rate}",
            "evaluation_set": evaluation.evaluation_set,
        },
    )
    if decision.promoted:
        champions.promote("policy", candidate_model, reason=reasons, actor=f"run {context.run_id}")


def _list_mismatches(
    evaluation: Evaluation, candidate: ModelVersion, champions: Champions
) -> list[str]:
    """Reasons why the evaluation is not valid: other models than the current ones, or a refused
    reward model.
    """
    champion, mismatches = champions.policy(), []
    if evaluation.candidate != candidate.label:
        mismatches.append(
            f"the evaluation is of {evaluation.candidate}, but the candidate is "
            f"{candidate.label}: materialise evaluation again"
        )
    if evaluation.champion not in (
        champion.label,
        candidate.parent if champion.label == candidate.label else None,
    ):
        mismatches.append(
            f"the evaluation is against {evaluation.champion}, but the champion is "
            f"{champion.label}: materialise evaluation again"
        )
    current = champions.store.evaluation_sets.latest()
    if current is not None and evaluation.evaluation_set != current.version:
        mismatches.append(
            f"the evaluation is on evaluation set {evaluation.evaluation_set or 'unknown'}, but "
            f"the present one is {current.version}: materialise evaluation again"
        )
    refusal = champions.refusal(evaluation.reward_model.partition(",")[0])
    if refusal is not None:
        mismatches.append(f"the reward model of the evaluation was refused: {refusal.cause}")
    return mismatches


def _failed_checks(instance: dg.DagsterInstance) -> list[str]:
    """Blocking checks of the candidate's data that failed at their last execution."""
    key = dg.AssetCheckKey(dg.AssetKey("retraining_set"), SCHEMA_CHECK)
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
    return [
        key.to_user_string() for key, record in latest.items() if record.status.value == "FAILED"
    ]
