"""Fits the joint model of a project's votes and computes all annotator figures.

Annotator figures use all votes. Soft labels are used for training, so they come from a second model
fitted without votes of the test split.
"""

from dataclasses import dataclass

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.core.frames import COMPARISONS, SOFT_LABELS, check_frame
from rlhf_pipeline.core.records import Interval, Record
from rlhf_pipeline.feedback.votes.agreement import Agreement, agreement
from rlhf_pipeline.feedback.votes.annotators import annotator_figures
from rlhf_pipeline.feedback.votes.chance_corrected import krippendorff_alpha
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_open_votes
from rlhf_pipeline.feedback.votes.joint_model import JointModel, joint_model
from rlhf_pipeline.feedback.votes.judgements import judged_comparison
from rlhf_pipeline.feedback.votes.splits import splits_of


class AnnotatorReport(Record):
    """Convergence of the fit and agreement of annotators; an interval is None if no votes
    overlap.
    """

    n_annotators: int
    n_comparisons: int
    discrimination: float = Field(
        description="discrimination of the typical annotator: feeling per unit of utility"
    )
    is_converged: bool
    n_iterations: int
    log_likelihoods: tuple[float, ...] = Field(description="after each iteration")
    alpha: Interval | None = Field(
        description="Krippendorff's nominal alpha: 1 is full agreement, 0 is chance"
    )
    agreement: Agreement


@dataclass(frozen=True)
class AnnotatorModel:
    """The fitted models: `model` uses all votes; `teacher` only votes outside the test split (None
    without any).

    `figures` is ANNOTATOR_FIGURES, least reliable first; `alpha` is chance-corrected agreement.
    """

    model: JointModel
    teacher: JointModel | None
    figures: pd.DataFrame
    alpha: Interval | None
    agreement: Agreement

    @property
    def labels(self) -> pd.DataFrame:
        """SOFT_LABELS for training, from the teacher."""
        return SOFT_LABELS.empty_frame() if self.teacher is None else self.teacher.labels

    def report(self) -> AnnotatorReport:
        model = self.model
        return AnnotatorReport(
            n_annotators=len(self.figures),
            n_comparisons=len(model.labels),
            discrimination=model.discrimination,
            is_converged=model.is_converged,
            n_iterations=model.n_iterations,
            log_likelihoods=model.log_likelihoods,
            alpha=self.alpha,
            agreement=self.agreement,
        )


def fit_annotator_model(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    blind_only: bool = False,
) -> AnnotatorModel:
    """Fit and measure from VOTES and their COMPARISONS. Uses counting votes; self-consistency also
    uses earlier passes. With `blind_only`, agreement and figures leave out what `drop_open_votes`
    drops; the model is fitted to all votes.

    Raises NotEnoughVotes without usable votes, UnknownComparison, FrameError.
    """
    latest_votes = counting_votes(votes)
    teacher = _fit_teacher(latest_votes, comparisons)
    is_all = teacher is not None and bool(_is_outside_test(latest_votes, comparisons).all())
    model = (
        teacher
        if teacher is not None and is_all
        else joint_model(latest_votes, comparisons, start=teacher)
    )
    blind_votes = drop_open_votes(votes) if blind_only else votes
    return AnnotatorModel(
        model=model,
        teacher=teacher,
        figures=annotator_figures(blind_votes, model, comparisons=comparisons),
        alpha=krippendorff_alpha(counting_votes(blind_votes)),
        agreement=agreement(blind_votes),
    )


def training_labels(votes: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """SOFT_LABELS for training, from VOTES on COMPARISONS outside the test split; empty without
    such votes. Raises as `joint_model`.

    Utilities are shared between comparisons and reliabilities between prompts, so labels of the
    train split fitted to all votes would leak votes of the test split.
    """
    teacher = _fit_teacher(counting_votes(votes), comparisons)
    return SOFT_LABELS.empty_frame() if teacher is None else teacher.labels


def _fit_teacher(votes: pd.DataFrame, comparisons: pd.DataFrame) -> JointModel | None:
    try:
        return joint_model(votes[_is_outside_test(votes, comparisons)], comparisons)
    except NotEnoughVotes:
        return None


def _is_outside_test(votes: pd.DataFrame, comparisons: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each vote's comparison, and for a repeat its original, is outside the test split."""
    comparisons = check_frame(comparisons, COMPARISONS)
    in_test = comparisons.loc[splits_of(comparisons) == "test", "comparison_id"]
    return ~(judged_comparison(votes).isin(in_test) | votes["comparison_id"].isin(in_test))


def judged_comparison_ids(votes: pd.DataFrame) -> list[str]:
    """Ids of the comparisons of VOTES and of the originals of repeats, sorted."""
    return sorted({*votes["comparison_id"], *votes["repeat_of"].dropna()})
