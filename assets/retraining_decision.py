"""The decision to retrain, as an external asset: the retraining sensor and `rlhf run` report it."""

from datetime import UTC, datetime

import dagster as dg

from rlhf_pipeline.application.assets.delivery import OWNERS
from rlhf_pipeline.core.records import TriggerDecision
from rlhf_pipeline.store import Store

DECISION_TAG = "rlhf/decision_id"  # on each run: the decision that requested it
ATTEMPT_TAG = "rlhf/attempt"

retraining_decision = dg.AssetSpec(
    "retraining_decision",
    group_name="improve",
    owners=OWNERS,
    tags={"cadence": "on_demand", "part": "improve"},
    kinds={"sqlite"},
    deps=["drift_report"],
    description="Fire or hold, with its reasons and evidence. The retraining sensor decides on "
    "drift and calibration events; `rlhf run retraining --reason` and launches in Dagster are "
    "decisions by hand.",
)


def record_launch(context: dg.AssetExecutionContext, store: Store) -> None:
    """Record a retraining that no decision requested: somebody launched it in Dagster. Later calls
    in the same run do nothing.
    """
    if DECISION_TAG in context.run.tags or any(
        decision.run_id == context.run_id for decision in store.decisions.all()
    ):
        return
    decision = store.decisions.fire_by_hand(
        "no reason given", actor="Dagster", now=datetime.now(UTC), run_id=context.run_id
    )
    context.instance.report_runless_asset_event(decision_event(decision))


def decision_event(decision: TriggerDecision) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        retraining_decision.key,
        metadata={
            "headline": describe(decision),
            "decision": decision.stored_id,
            "record": dg.MetadataValue.json(decision.model_dump(mode="json")),
        },
    )


def describe(decision: TriggerDecision) -> str:
    return f"{decision.action}: {'; '.join(decision.reasons)}"
