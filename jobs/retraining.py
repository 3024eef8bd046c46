"""Retraining: from a confirmed change of taste to a gated candidate, by its sensor or by hand."""

from typing import Any

import dagster as dg

from rlhf_pipeline.application.jobs.executors import light_executor, training_executor

retraining = dg.define_asset_job(
    "retraining",
    selection=[
        "preference_pairs",
        "annotator_model",
        "reward_model",
        "calibration",
        "retraining_set",
        "candidate_model",
        "evaluation",
        "gate",
    ],
    description="Preference pairs made, annotator model, reward model and calibration refitted, "
    "retraining set selected, candidate trained, judged and gated.",
    executor_def=training_executor,
)

policy_training = dg.define_asset_job(
    "policy_training",
    selection=["retraining_set", "candidate_model", "evaluation", "gate"],
    description="A candidate trained as `rlhf policy train` ordered it, on the current pairs and "
    "reward model, then judged and gated. No reward model is fitted.",
    executor_def=training_executor,
)


def recalibration_config(up_to_seq: int) -> dict[str, Any]:
    """Run configuration that calibrates the champion on the votes up to `up_to_seq`."""
    champion = {"up_to_seq": up_to_seq, "version": "champion"}
    pairs = {"config": {"up_to_seq": up_to_seq}}
    return {"ops": {"preference_pairs": pairs, "calibration": {"config": champion}}}


recomputation = dg.define_asset_job(
    "recomputation",
    selection=["preference_pairs", "drift_report"],
    description="Preference pairs, and drift reports since a change, made again without the votes "
    "of quarantined annotators, or with those of a lifted quarantine. No model is fitted.",
    executor_def=light_executor,
)

recalibration = dg.define_asset_job(
    "recalibration",
    selection=["preference_pairs", "calibration"],
    description="The champion reward model calibrated again on all votes; it is not refitted, and "
    "no policy is trained.",
    config={"ops": {"calibration": {"config": {"version": "champion"}}}},
    executor_def=training_executor,
)
