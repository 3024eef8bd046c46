"""Votes weighed by how each annotator confuses a, b and neither (Dawid and Skene 1979). Knows
frames of votes; the EM is crowd-kit's.

A table of confusions that rests on the dozen votes of one person is mostly chance, and taken at its
word it does worse than the majority. So everybody is imagined to have answered a few questions
whose right answer is known, twice as often right as wrong in each other way: counts added to the
tables' own, a Dirichlet prior, which crowd-kit takes as votes on tasks with golden labels.
"""

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import NotEnoughVotes
from rlhf_pipeline.frames import VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes

LABELS = {Choice.A: "a", Choice.B: "b", Choice.TIE: "neither", Choice.BOTH_BAD: "neither"}
UNIT = {"low": 0.0, "high": 1.0}

CONFUSION_LABELS = FrameSchema(
    "confusion_labels",
    {
        "comparison_id": text("what was judged"),
        "p_a": number("chance that a is the right answer", **UNIT),
        "p_b": number("that b is", **UNIT),
        "p_neither": number("that neither is better", **UNIT),
        "n_votes": integer("judgements of it", low=1),
    },
    key=("comparison_id",),
)


class DawidSkeneParams(BaseModel):
    """How long the EM runs, and from which tables of confusions it moves away."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_iterations: int = Field(default=100, ge=1, description="EM iterations at most")
    tolerance: float = Field(
        default=1e-6, gt=0, description="Change of the mean evidence below which it has converged"
    )
    n_imagined: int = Field(
        default=2,
        ge=0,
        description="Imagined answers of every annotator: for each right answer so many of each "
        "wrong one, and of the right one twice as many; 0 is the paper's maximum likelihood",
    )


def dawid_skene(votes: pd.DataFrame, params: DawidSkeneParams | None = None) -> pd.DataFrame:
    """CONFUSION_LABELS of VOTES that count, by comparison; the order of votes is irrelevant.

    Skips, machine votes and repeats (which show the sides swapped) are left out. Raises
    NotEnoughVotes where nobody judged anything.
    """
    from crowdkit.aggregation import DawidSkene

    params = params or DawidSkeneParams()
    judged = drop_machine_votes(check_frame(votes, VOTES))
    judged = judged[judged["choice"].isin(LABELS) & judged["repeat_of"].isna()]
    if judged.empty:
        raise NotEnoughVotes(
            "No vote judges a comparison: all are skips, repeats or a machine's. Collect some "
            "first."
        )
    named = pd.DataFrame(
        {
            "task": judged["comparison_id"],
            "worker": judged["annotator_id"],
            "label": judged["choice"].map({str(choice): label for choice, label in LABELS.items()}),
        }
    ).sort_values(
        ["task", "worker", "label"], ignore_index=True
    )  # sums depend on the order in the last bits
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
    """Votes of all workers on some tasks that nobody was given, and the right labels of these."""
    workers, labels = sorted(named["worker"].unique()), sorted(named["label"].unique())
    cast, right = [named.iloc[:0]], {}
    for label in labels:
        for said in labels:
            for i in range(times * (2 if said == label else 1)):
                task = f"\0{label} {said} {i}"  # an id that no comparison has
                right[task] = label
                cast.append(pd.DataFrame({"task": task, "worker": workers, "label": said}))
    return pd.concat(cast, ignore_index=True), pd.Series(right, dtype="str")
