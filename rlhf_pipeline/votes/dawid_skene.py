"""Fits Dawid and Skene's (1979) annotator confusion model with crowd-kit's EM.

A confusion matrix estimated from a dozen votes is mostly noise and does worse than the majority
vote. So a Dirichlet prior adds counts to each matrix: every annotator gets imaginary votes on gold
tasks, twice as many correct ones as wrong ones of each kind. crowd-kit takes them as votes on tasks
with golden labels.
"""

import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.frames import VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.counting import drop_machine_votes

LABELS = {Choice.A: "a", Choice.B: "b", Choice.TIE: "neither", Choice.BOTH_BAD: "neither"}
UNIT = {"low": 0.0, "high": 1.0}

CONFUSION_LABELS = FrameSchema(
    "confusion_labels",
    {
        "comparison_id": text("the judged comparison"),
        "p_a": number("probability that a is the correct answer", **UNIT),
        "p_b": number("probability that b is the correct answer", **UNIT),
        "p_neither": number("probability that neither is better", **UNIT),
        "n_votes": integer("votes on it", low=1),
    },
    key=("comparison_id",),
)


class DawidSkeneParams(Parameters):
    """Iterations and prior of the EM."""

    max_iterations: int = Field(default=100, ge=1, description="Maximum number of EM iterations")
    tolerance: float = Field(
        default=1e-6,
        gt=0,
        description="Change of the mean log-likelihood bound below which the EM has converged",
    )
    n_imagined: int = Field(
        default=2,
        ge=0,
        description="Prior counts per annotator and true category: this many of each wrong answer "
        "and twice as many of the correct one; 0 gives the paper's maximum likelihood",
    )


def dawid_skene(votes: pd.DataFrame, params: DawidSkeneParams | None = None) -> pd.DataFrame:
    """CONFUSION_LABELS of counting VOTES, by comparison; the order of votes is irrelevant.

    Skips, machine votes and repeats (which swap the sides) are left out. Raises NotEnoughVotes if
    no vote remains.
    """
    from crowdkit.aggregation import DawidSkene

    params = params or DawidSkeneParams()
    judged = drop_machine_votes(check_frame(votes, VOTES))
    judged = judged[judged["choice"].isin(LABELS) & judged["repeat_of"].isna()]
    if judged.empty:
        raise NotEnoughVotes(
            "No usable votes: all are skips, repeats or machine votes. Collect some first."
        )
    named = pd.DataFrame(
        {
            "task": judged["comparison_id"],
            "worker": judged["annotator_id"],
            "label": judged["choice"].map({str(choice): label for choice, label in LABELS.items()}),
        }
    ).sort_values(
        ["task", "worker", "label"], ignore_index=True
    )  # rounding of sums depends on the order
    imagined, right = _imagine_votes(named, params.n_imagined)
    em = DawidSkene(n_iter=params.max_iterations, tol=params.tolerance)
    chances = em.fit_predict_proba(pd.concat([named, imagined], ignore_index=True), right).drop(
        index=right.index
    )
    chances = chances.reindex(columns=["a", "b", "neither"], fill_value=0.0).sort_index()
    frame = pd.DataFrame(
        {
            "comparison_id": chances.index.to_numpy(),
            **{f"p_{label}": chances[label].clip(0, 1).to_numpy() for label in chances.columns},
            "n_votes": named.groupby("task").size().reindex(chances.index).to_numpy(),
        }
    )
    return check_frame(frame, CONFUSION_LABELS)


def _imagine_votes(named: pd.DataFrame, times: int) -> tuple[pd.DataFrame, pd.Series]:
    """Imaginary votes of all workers on gold tasks, and the correct labels of these tasks."""
    workers, labels = sorted(named["worker"].unique()), sorted(named["label"].unique())
    cast, right = [named.iloc[:0]], {}
    for label in labels:
        for said in labels:
            for i in range(times * (2 if said == label else 1)):
                task = f"\0{label} {said} {i}"  # never an id of a comparison
                right[task] = label
                cast.append(pd.DataFrame({"task": task, "worker": workers, "label": said}))
    return pd.concat(cast, ignore_index=True), pd.Series(right, dtype="str")
