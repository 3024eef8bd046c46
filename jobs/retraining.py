"""Retraining: from a confirmed change of taste to a gated candidate. Only by sensor or by hand."""

import dagster as dg

# Training steps run in processes of their own, so that their memory is returned; forkserver starts them without
# importing the definitions again.
training_executor = dg.multiprocess_executor.configured({"max_concurrent": 1, "start_method": {"forkserver": {}}}, name="training_executor")

retraining = dg.define_asset_job(
    "retraining",
    selection=["reward_model", "calibration", "retraining_set", "candidate_model", "evaluation", "gate"],
    description="Reward model and calibration refitted, retraining set selected, candidate trained, judged and gated.",
    executor_def=training_executor,
)
