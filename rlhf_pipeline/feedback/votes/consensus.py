"""Computes the consensus of several annotators on each comparison, and which are disputed.

A vote is for `a`, `b` or neither (`tie`, `both_bad`); skips are left out. Each vote has a weight:

- `majority`: 1.
- `strength_weighted`: its strength, 1 to 4; votes without strength, such as ties, weigh
  STRENGTH_WHEN_MISSING.

The method `joint_model` weights votes by annotator and needs a fitted model; see `model_consensus`.

The side with the greatest total weight is the consensus. If neither wins, it is the heavier of
`tie` and `both_bad` (`tie` if equal). If two sides have equal weight there is no consensus. `share`
is the winner's share of the total weight, `low` to `high` its Wilson interval (1927) at the
effective number of votes, (sum of weights)² / sum of squared weights (Kish 1965).

    open       fewer than `min_votes` votes
    disputed   no winner, or its share is below MIN_SHARE
    agreed     otherwise

Machine votes, votes on repeats (which swap the sides) and superseded votes are left out.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import JUDGEMENTS, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.core.intervals import wilson_bounds
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.votes.agreement import JUDGING
from rlhf_pipeline.feedback.votes.preference_pairs import STRENGTH_WHEN_MISSING

Floats = npt.NDArray[np.float64]
Weighing = Literal["majority", "strength_weighted"]
Method = Literal[Weighing, "joint_model"]
State = Literal["open", "disputed", "agreed"]
STATES: tuple[State, ...] = ("open", "disputed", "agreed")
PLURALS = {Choice.TIE: "ties"}
MIN_SHARE = 2 / 3
# shares are compared as multiples of 1 / SHARES_APART, so that rounding errors do not affect the
# order
SHARES_APART = 10**9
PROBABILITY = {"low": 0.0, "high": 1.0}
NULLABLE_OPTIONAL = {"nullable": True, "optional": True}

# Columns of the annotator model; missing with other methods.
MODEL_COLUMNS = {
    "p_a": number(
        "probability that a typical annotator without position bias prefers a in a forced choice",
        **NULLABLE_OPTIONAL,
        **PROBABILITY,
    ),
    "p_low": number("lower end of the interval", **NULLABLE_OPTIONAL, **PROBABILITY),
    "p_high": number("upper end of the interval", **NULLABLE_OPTIONAL, **PROBABILITY),
    "up_to_seq": integer(
        "highest vote seq used to fit the annotator model", **NULLABLE_OPTIONAL, low=1
    ),
    "n_since": integer("votes on the comparison after that seq", **NULLABLE_OPTIONAL, low=0),
}

CONSENSUS = FrameSchema(
    "consensus",
    {
        "comparison_id": text("the judged comparison"),
        "prompt_id": text("its prompt"),
        "state": text("open, disputed or agreed", values=STATES),
        "choice": text(
            "choice with the greatest weight; missing if two sides have equal weight",
            nullable=True,
            values=tuple(JUDGING),
        ),
        "share": number(
            "share of the greatest weight; with the annotator model the probability of the choice",
            **PROBABILITY,
        ),
        "low": number("lower end of the interval", **PROBABILITY),
        "high": number("upper end of the interval", **PROBABILITY),
        "n_votes": integer("annotators who judged it", low=1),
        "n_a": integer("votes for a", low=0),
        "n_b": integer("votes for b", low=0),
        "n_ties": integer("votes for tie", low=0),
        "n_both_bad": integer("votes for both_bad", low=0),
        "last_seq": integer("highest seq of these votes", low=1),
        **MODEL_COLUMNS,
    },
    key=("comparison_id",),
)


def consensus(
    judgements: pd.DataFrame, method: Weighing = "majority", min_votes: int = 2
) -> pd.DataFrame:
    """CONSENSUS of a JUDGEMENTS frame: one row per judged comparison, by id; the order of votes is
    irrelevant. `min_votes` is usually the project's overlap.

    Raises FrameError if the frame breaks its schema.
    """
    judgements = check_frame(judgements, JUDGEMENTS)
    if judgements.empty:
        return CONSENSUS.empty_frame()
    codes, ids = pd.factorize(judgements["comparison_id"], sort=True)
    n, weights = len(ids), _weights(judgements, method)
    masks = {choice: (judgements["choice"] == choice).to_numpy() for choice in JUDGING}
    weight_of = {
        choice: np.bincount(codes, weights=weights * mask, minlength=n)
        for choice, mask in masks.items()
    }
    # Weights are small integers, so sums are exact and do not depend on the order of votes.
    sides = np.column_stack(
        [
            weight_of[Choice.A],
            weight_of[Choice.B],
            weight_of[Choice.TIE] + weight_of[Choice.BOTH_BAD],
        ]
    )
    heaviest, total = sides.max(axis=1), sides.sum(axis=1)
    is_won = (sides == heaviest[:, None]).sum(axis=1) == 1
    neither = np.where(
        weight_of[Choice.BOTH_BAD] > weight_of[Choice.TIE], Choice.BOTH_BAD.value, Choice.TIE.value
    )
    winner = np.select(
        [sides.argmax(axis=1) == 0, sides.argmax(axis=1) == 1],
        [Choice.A.value, Choice.B.value],
        neither,
    )
    share, n_votes = heaviest / total, np.bincount(codes, minlength=n)
    low, high = wilson_bounds(share, total**2 / np.bincount(codes, weights=weights**2, minlength=n))
    is_agreed = is_won & (share >= MIN_SHARE - 1e-12)
    last_seq = np.zeros(n, dtype=np.int64)
    np.maximum.at(last_seq, codes, judgements["seq"].to_numpy())
    n_by_choice = {
        f"n_{PLURALS.get(choice, choice)}": np.bincount(codes[mask], minlength=n)
        for choice, mask in masks.items()
    }
    frame = pd.DataFrame(
        {
            "comparison_id": ids,
            "prompt_id": judgements["prompt_id"].to_numpy()[np.unique(codes, return_index=True)[1]],
            "state": np.where(
                n_votes < min_votes, "open", np.where(is_agreed, "agreed", "disputed")
            ),
            "choice": pd.Series(winner, dtype="str").where(is_won),
            "share": share,
            "low": low,
            "high": high,
            "n_votes": n_votes,
            **n_by_choice,
            "last_seq": last_seq,
        }
    )
    return check_frame(frame, CONSENSUS)


def adjudication_queue(agreed: pd.DataFrame) -> pd.DataFrame:
    """The disputed rows of a CONSENSUS frame for adjudication: most evenly split first, then most
    votes.
    """
    disputed = agreed[agreed["state"] == "disputed"]
    # Rounded to billionths: p and 1 - p of mirrored votes are the same share but differ in the last
    # bit.
    order = disputed.assign(
        no_winner=disputed["choice"].notna(), billionths=(disputed["share"] * SHARES_APART).round()
    ).sort_values(
        ["no_winner", "billionths", "n_votes", "comparison_id"], ascending=[True, True, False, True]
    )
    return disputed.loc[order.index].reset_index(drop=True)


def _weights(judgements: pd.DataFrame, method: Weighing) -> Floats:
    if method == "majority":
        return np.ones(len(judgements))
    return np.asarray(judgements["strength"].fillna(STRENGTH_WHEN_MISSING), dtype=np.float64)
