"""The stages of the loop as Dagster assets, one file per stage."""

import dagster as dg

from rlhf_pipeline.application.assets.annotator_model import annotator_model
from rlhf_pipeline.application.assets.calibration import calibration
from rlhf_pipeline.application.assets.candidate_model import candidate_model
from rlhf_pipeline.application.assets.comparisons import comparisons
from rlhf_pipeline.application.assets.completions import completions
from rlhf_pipeline.application.assets.drift_report import drift_report
from rlhf_pipeline.application.assets.evaluation import evaluation
from rlhf_pipeline.application.assets.gate import gate
from rlhf_pipeline.application.assets.preference_pairs import preference_pairs
from rlhf_pipeline.application.assets.prompts import prompts
from rlhf_pipeline.application.assets.reflection_log import reflection_log
from rlhf_pipeline.application.assets.retraining_decision import retraining_decision
from rlhf_pipeline.application.assets.retraining_set import retraining_set
from rlhf_pipeline.application.assets.reward_model import reward_model
from rlhf_pipeline.application.assets.votes import votes, votes_inbox

# In the order of the loop.
STAGES: list[dg.AssetsDefinition | dg.AssetSpec] = [
    prompts,
    completions,
    comparisons,
    votes_inbox,
    votes,
    preference_pairs,
    annotator_model,
    reward_model,
    calibration,
    reflection_log,
    drift_report,
    retraining_decision,
    retraining_set,
    candidate_model,
    evaluation,
    gate,
]
