"""The joint model of a project's votes with everything said of its annotators. Knows frames of votes; knows no store and no reward model."""

from dataclasses import dataclass

import pandas as pd
from pydantic import Field

from rlhf_pipeline.frames import VOTES, check_frame
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.votes.agreement import Agreement, agreement
from rlhf_pipeline.votes.annotators import FiguresParams, annotator_figures
from rlhf_pipeline.votes.chance_corrected import fleiss_kappa, krippendorff_alpha, pairwise_kappa
from rlhf_pipeline.votes.joint_model import JointModel, JointParams, joint_model


class AnnotatorReport(Record):
    """How the fit went and how far people agree; an interval is None where nothing overlaps."""

    n_annotators: int
    n_comparisons: int
    discrimination: float = Field(description="of the typical annotator: what one unit of utility is felt as")
    is_converged: bool
    n_iterations: int
    log_likelihoods: tuple[float, ...] = Field(description="after each iteration")
    alpha: Interval | None = Field(description="Krippendorff's, nominal: 1 where all agree, 0 as often as chance")
    kappa: Interval | None = Field(description="Fleiss'")
    agreement: Agreement


@dataclass(frozen=True)
class LearntAnnotators:
    """The joint model, ANNOTATOR_FIGURES with the least reliable first, PAIRWISE_KAPPA, and agreement beyond chance."""

    model: JointModel
    figures: pd.DataFrame
    kappas: pd.DataFrame
    alpha: Interval | None
    kappa: Interval | None
    agreement: Agreement

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
            kappa=self.kappa,
            agreement=self.agreement,
        )


def learn_annotators(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    efforts: pd.DataFrame | None = None,
    passes: pd.DataFrame | None = None,
    params: JointParams | None = None,
    figures: FiguresParams | None = None,
) -> LearntAnnotators:
    """Everything from VOTES, the COMPARISONS they judge and, where there are any, EFFORTS and earlier passes.

    Raises NotEnoughVotes where no vote by people judges anything, UnknownComparison, FrameError.
    """
    model = joint_model(votes, comparisons, params)
    return LearntAnnotators(
        model=model,
        figures=annotator_figures(votes, model, comparisons=comparisons, efforts=efforts, passes=passes, params=figures),
        kappas=pairwise_kappa(votes),
        alpha=krippendorff_alpha(votes),
        kappa=fleiss_kappa(votes),
        agreement=agreement(votes, passes=passes),
    )


def last_words(votes: pd.DataFrame, *, up_to_seq: int | None = None) -> pd.DataFrame:
    """VOTES of several days' snapshots with one vote of an annotator on a comparison, the last up to a seq: a snapshot that is older than
    a later day's still holds what was judged again there."""
    checked = check_frame(votes, VOTES).sort_values("seq")
    known = checked if up_to_seq is None else checked[checked["seq"] <= up_to_seq]
    return known.drop_duplicates(["comparison_id", "annotator_id"], keep="last").reset_index(drop=True)


def judged_ids(votes: pd.DataFrame) -> list[str]:
    """Comparisons that VOTES are on, and those that these repeat."""
    return sorted({*votes["comparison_id"], *votes["repeat_of"].dropna()})
