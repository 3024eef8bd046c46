"""Turns votes into preference pairs, agreement, consensus and annotator figures."""

from rlhf_pipeline.core.frames import SOFT_LABELS
from rlhf_pipeline.core.intervals import BootstrapParams, interval_of_mean, resampled_sums
from rlhf_pipeline.core.records import Opening
from rlhf_pipeline.feedback.votes.agreement import Agreement, AgreementParams, agreement
from rlhf_pipeline.feedback.votes.annotator_model import (
    AnnotatorModel,
    fit_annotator_model,
    judged_comparison_ids,
    training_labels,
)
from rlhf_pipeline.feedback.votes.annotators import (
    ANNOTATOR_FIGURES,
    FiguresParams,
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
    ConsensusParams,
    adjudication_queue,
    consensus,
)
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes
from rlhf_pipeline.feedback.votes.gold import gold_ceiling, gold_pairs
from rlhf_pipeline.feedback.votes.joint_model import (
    ANNOTATORS,
    JointModel,
    JointParams,
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
    log_opening,
    n_test_pairs,
    open_test_split,
    prompts_in_several_splits,
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
    "AgreementParams",
    "AnnotatorModel",
    "BootstrapParams",
    "ConsensusParams",
    "FiguresParams",
    "JointModel",
    "JointParams",
    "Opening",
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
    "gold_ceiling",
    "gold_pairs",
    "interval_of_mean",
    "joint_model",
    "judged_comparison_ids",
    "krippendorff_alpha",
    "log_opening",
    "make_pairs",
    "n_test_pairs",
    "noise_ceiling_or_repeats",
    "open_test_split",
    "prompts_in_several_splits",
    "resampled_sums",
    "separate_old_completions",
    "split_of",
    "training_labels",
    "training_rows",
]
