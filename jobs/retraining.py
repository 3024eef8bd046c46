"""Retraining: from a confirmed change of taste to a gated candidate, by its sensor or by hand."""

import dagster as dg

from jobs.executors import training_executor

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

recalibration = dg.define_asset_job(
    "recalibration",
    selection=["preference_pairs", "calibration"],
    description="The latest reward model calibrated again on all votes; it is not refitted, and no "
    "policy is trained.",
    executor_def=training_executor,
)
