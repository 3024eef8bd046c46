"""Turns votes into preference pairs, agreement, consensus and annotator figures."""

from rlhf_pipeline.core.frames import SOFT_LABELS
from rlhf_pipeline.core.intervals import BootstrapParams, interval_of_mean, resampled_sums
from rlhf_pipeline.feedback.votes.agreement import Agreement, agreement
from rlhf_pipeline.feedback.votes.annotator_model import (
    AnnotatorModel,
    fit_annotator_model,
    judged_comparison_ids,
    training_labels,
)
from rlhf_pipeline.feedback.votes.annotators import (
    ANNOTATOR_FIGURES,
    annotator_figures,
)
from rlhf_pipeline.feedback.votes.ceilings import (
    CEILINGS,
    ceiling_of_agreement,
    ceilings,
    noise_ceiling_or_repeats,
)
from rlhf_pipeline.feedback.votes.chance_corrected import (
    krippendorff_alpha,
)
from rlhf_pipeline.feedback.votes.consensus import (
    CONSENSUS,
    adjudication_queue,
    consensus,
)
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes
from rlhf_pipeline.feedback.votes.joint_model import (
    ANNOTATORS,
    JointModel,
    joint_model,
)
from rlhf_pipeline.feedback.votes.preference_pairs import (
    PairCounts,
    PairParams,
    make_pairs,
    training_rows,
)
from rlhf_pipeline.feedback.votes.splits import (
    SPLITS,
    prompts_in_several_splits,
    select_test_pairs,
    split_of,
)
from rlhf_pipeline.feedback.votes.taste_changes import (
    NO_CHANGES,
    TasteChanges,
    separate_old_completions,
)
from rlhf_pipeline.feedback.votes.teaching import NO_QUARANTINES, Quarantines, TeachingRule

__all__ = [
    "ANNOTATORS",
    "ANNOTATOR_FIGURES",
    "CEILINGS",
    "CONSENSUS",
    "NO_CHANGES",
    "NO_QUARANTINES",
    "SOFT_LABELS",
    "SPLITS",
    "Agreement",
    "AnnotatorModel",
    "BootstrapParams",
    "JointModel",
    "PairCounts",
    "PairParams",
    "Quarantines",
    "TasteChanges",
    "TeachingRule",
    "adjudication_queue",
    "agreement",
    "annotator_figures",
    "ceiling_of_agreement",
    "ceilings",
    "consensus",
    "drop_machine_votes",
    "fit_annotator_model",
    "interval_of_mean",
    "joint_model",
    "judged_comparison_ids",
    "krippendorff_alpha",
    "make_pairs",
    "noise_ceiling_or_repeats",
    "prompts_in_several_splits",
    "resampled_sums",
    "select_test_pairs",
    "separate_old_completions",
    "split_of",
    "training_labels",
    "training_rows",
]
