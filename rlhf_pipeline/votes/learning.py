"""The joint model of a project's votes with everything said of its annotators. Knows frames of
votes; knows no store and no reward model.

Annotators are judged by all their votes. Labels are learnt from, so they rest on no vote of the
test split: reliabilities and utilities of a model that is fitted without those.
"""

from dataclasses import dataclass

import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.frames import COMPARISONS, SOFT_LABELS, check_frame
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.votes.agreement import Agreement, agreement
from rlhf_pipeline.votes.annotators import FiguresParams, annotator_figures
from rlhf_pipeline.votes.chance_corrected import fleiss_kappa, krippendorff_alpha, pairwise_kappa
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.joint_model import JointModel, JointParams, joint_model
from rlhf_pipeline.votes.judgements import judged_comparison
from rlhf_pipeline.votes.splits import splits_of


class AnnotatorReport(Record):
    """How the fit went and how far people agree; an interval is None where nothing overlaps."""

    n_annotators: int
    n_comparisons: int
    discrimination: float = Field(
        description="of the typical annotator: what one unit of utility is felt as"
    )
    is_converged: bool
    n_iterations: int
    log_likelihoods: tuple[float, ...] = Field(description="after each iteration")
    alpha: Interval | None = Field(
        description="Krippendorff's, nominal: 1 where all agree, 0 as often as chance"
    )
    kappa: Interval | None = Field(description="Fleiss'")
    agreement: Agreement


@dataclass(frozen=True)
class LearntAnnotators:
    """The joint model of all votes and that of those outside the test split (None where there are
    none), ANNOTATOR_FIGURES with the least reliable first, PAIRWISE_KAPPA, and agreement beyond
    chance."""

    model: JointModel
    teacher: JointModel | None
    figures: pd.DataFrame
    kappas: pd.DataFrame
    alpha: Interval | None
    kappa: Interval | None
    agreement: Agreement

    @property
    def labels(self) -> pd.DataFrame:
        """SOFT_LABELS to learn from."""
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
            kappa=self.kappa,
            agreement=self.agreement,
        )


def learn_annotators(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    params: JointParams | None = None,
    figures: FiguresParams | None = None,
) -> LearntAnnotators:
    """Everything from VOTES and the COMPARISONS they judge: from the votes that count, and
    self-consistency from earlier passes too.

    Raises NotEnoughVotes where no vote by people judges anything, UnknownComparison, FrameError.
    """
    counted = counting(votes)
    teacher = _fit_teacher(counted, comparisons, params)
    is_all = teacher is not None and bool(_is_outside_test(counted, comparisons).all())
    model = (
        teacher
        if teacher is not None and is_all
        else joint_model(counted, comparisons, params, start=teacher)
    )
    return LearntAnnotators(
        model=model,
        teacher=teacher,
        figures=annotator_figures(votes, model, comparisons=comparisons, params=figures),
        kappas=pairwise_kappa(counted),
        alpha=krippendorff_alpha(counted),
        kappa=fleiss_kappa(counted),
        agreement=agreement(votes),
    )


def training_labels(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: JointParams | None = None
) -> pd.DataFrame:
    """SOFT_LABELS to learn from, of VOTES on COMPARISONS outside the test split; none where nobody
    judged one. Raises as `joint_model`.

    Completions share their utility between comparisons, and annotators their reliability between
    prompts: a label of the train split from all votes would hold what was said of the test split.
    """
    teacher = _fit_teacher(counting(votes), comparisons, params)
    return SOFT_LABELS.empty_frame() if teacher is None else teacher.labels


def _fit_teacher(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: JointParams | None
) -> JointModel | None:
    try:
        return joint_model(votes[_is_outside_test(votes, comparisons)], comparisons, params)
    except NotEnoughVotes:
        return None


def _is_outside_test(votes: pd.DataFrame, comparisons: pd.DataFrame) -> "pd.Series[bool]":
    """By the split of the comparison each of VOTES is about, as of pairs: of a repeat, that of the
    one it repeats.
    """
    shown = check_frame(comparisons, COMPARISONS)
    in_test = shown.loc[splits_of(shown) == "test", "comparison_id"]
    return ~(judged_comparison(votes).isin(in_test) | votes["comparison_id"].isin(in_test))


def judged_comparison_ids(votes: pd.DataFrame) -> list[str]:
    """Comparisons that VOTES are on, and those that these repeat."""
    return sorted({*votes["comparison_id"], *votes["repeat_of"].dropna()})
