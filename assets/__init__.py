"""The stages of the loop as Dagster assets, one file per stage."""

import dagster as dg

from assets.annotator_model import annotator_model
from assets.calibration import calibration
from assets.candidate_model import candidate_model
from assets.comparisons import comparisons
from assets.completions import completions
from assets.drift_report import drift_report
from assets.evaluation import evaluation
from assets.gate import gate
from assets.preference_pairs import preference_pairs
from assets.prompts import prompts
from assets.reflection_log import reflection_log
from assets.retraining_decision import retraining_decision
from assets.retraining_set import retraining_set
from assets.reward_model import reward_model
from assets.votes import votes, votes_inbox

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
