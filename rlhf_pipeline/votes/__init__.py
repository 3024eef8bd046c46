"""From votes to preference pairs. Knows frames of votes and comparisons; knows no model and no storage."""

from rlhf_pipeline.votes.agreement import Agreement, AgreementParams, agreement, noise_ceiling
from rlhf_pipeline.votes.ceilings import CEILINGS, ceiling_of_agreement, ceilings
from rlhf_pipeline.votes.chance_corrected import PAIRWISE_KAPPA, fleiss_kappa, krippendorff_alpha, pairwise_kappa
from rlhf_pipeline.votes.consensus import CONSENSUS, ConsensusParams, adjudication, consensus
from rlhf_pipeline.votes.dawid_skene import CONFUSION_LABELS, DawidSkeneParams, dawid_skene
from rlhf_pipeline.votes.gold import gold_ceiling, gold_pairs
from rlhf_pipeline.votes.intervals import BootstrapParams, interval_of_mean, resampled_sums
from rlhf_pipeline.votes.joint_model import ANNOTATORS, SOFT_LABELS, JointModel, JointParams, joint_model
from rlhf_pipeline.votes.latest import latest_pairs
from rlhf_pipeline.votes.people import by_people
from rlhf_pipeline.votes.preference_pairs import PairCounts, PairParams, count_pairs, preference_pairs
from rlhf_pipeline.votes.splits import SPLITS, split_of
from rlhf_pipeline.votes.training_data import training_rows

__all__ = [
    "ANNOTATORS",
    "CEILINGS",
    "CONFUSION_LABELS",
    "CONSENSUS",
    "PAIRWISE_KAPPA",
    "SOFT_LABELS",
    "SPLITS",
    "Agreement",
    "AgreementParams",
    "BootstrapParams",
    "ConsensusParams",
    "DawidSkeneParams",
    "JointModel",
    "JointParams",
    "PairCounts",
    "PairParams",
    "adjudication",
    "agreement",
    "by_people",
    "ceiling_of_agreement",
    "ceilings",
    "consensus",
    "count_pairs",
    "dawid_skene",
    "fleiss_kappa",
    "gold_ceiling",
    "gold_pairs",
    "interval_of_mean",
    "joint_model",
    "krippendorff_alpha",
    "latest_pairs",
    "noise_ceiling",
    "pairwise_kappa",
    "preference_pairs",
    "resampled_sums",
    "split_of",
    "training_rows",
]
