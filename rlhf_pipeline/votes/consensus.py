"""What several people together say of a comparison, and where they do not agree. Knows a frame of
votes; knows no model and no storage.

An annotator says `a`, `b`, or that neither is better (`tie`, `both_bad`); skips say nothing. Each
vote has a weight:

- `majority`: 1.
- `strength_weighted`: its strength, 1 to 4; a vote that states none, ties among them, weighs
  `strength_when_missing`.

`joint_model`, which weighs a vote by who cast it, is `model_consensus`: it needs a fitted model.

The side with the greatest weight is the consensus; where `neither` has it, the heavier of `tie` and
`both_bad` (`tie` where they are equal). Equal weights of two sides give none. `share` is the
winner's part of the whole weight, `low` to `high` its interval after Wilson (1927) at the effective
number of votes, (sum of weights)² / sum of squared weights (Kish 1965).

    open       fewer than `min_votes` judgements: one vote agrees with nobody
    disputed   no winner, or its share is below `min_share`
    agreed     the rest

Votes of machines, on repeats (they show the sides swapped), and superseded ones are not counted.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.frames import FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.agreement import JUDGING
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting

Floats = npt.NDArray[np.float64]
Weighing = Literal["majority", "strength_weighted"]
Method = Literal[Weighing, "joint_model"]
State = Literal["open", "disputed", "agreed"]
WEIGHINGS: tuple[Weighing, ...] = get_args(Weighing)
METHODS: tuple[Method, ...] = get_args(Method)
STATES: tuple[State, ...] = ("open", "disputed", "agreed")
PLURALS = {Choice.TIE: "ties"}
# shares that are nearer to each other than one part of so many are equal to whoever adjudicates
SHARES_APART = 10**9
PROBABILITY = {"low": 0.0, "high": 1.0}
NULLABLE_OPTIONAL = {"nullable": True, "optional": True}

# What the annotator model says beside; missing where it was not asked.
MODEL_COLUMNS = {
    "p_a": number(
        "chance that a typical annotator without position bias, who has to choose, takes a",
        **NULLABLE_OPTIONAL,
        **PROBABILITY,
    ),
    "p_low": number("lower end of its interval", **NULLABLE_OPTIONAL, **PROBABILITY),
    "p_high": number("upper end of its interval", **NULLABLE_OPTIONAL, **PROBABILITY),
    "up_to_seq": integer(
        "newest vote that the annotator model was fitted to", **NULLABLE_OPTIONAL, low=1
    ),
    "n_since": integer("of these votes, those that came after it", **NULLABLE_OPTIONAL, low=0),
}

CONSENSUS = FrameSchema(
    "consensus",
    {
        "comparison_id": text("what was judged"),
        "prompt_id": text("its prompt"),
        "state": text("open, disputed or agreed", values=STATES),
        "choice": text(
            "what most of the weight says; missing where two sides have the same",
            nullable=True,
            values=tuple(JUDGING),
        ),
        "share": number(
            "the greatest weight's part of all weight; by the annotator model the chance of the "
            "choice",
            **PROBABILITY,
        ),
        "low": number("lower end of its interval", **PROBABILITY),
        "high": number("upper end of its interval", **PROBABILITY),
        "n_votes": integer("people who judged", low=1),
        "n_a": integer("of them for a", low=0),
        "n_b": integer("of them for b", low=0),
        "n_ties": integer("of them for tie", low=0),
        "n_both_bad": integer("of them for both_bad", low=0),
        "last_seq": integer("newest of these votes", low=1),
        **MODEL_COLUMNS,
    },
    key=("comparison_id",),
)


class ConsensusParams(BaseModel):
    """When people agree."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    min_votes: int = Field(
        default=2,
        ge=1,
        description="Judgements below which a comparison is open; usually the project's overlap",
    )
    min_share: float = Field(
        default=2 / 3, gt=0.5, le=1, description="Share of the weight below which it is disputed"
    )
    strength_when_missing: int = Field(
        default=2,
        ge=1,
        le=4,
        description="Weight of a vote that states no strength, where strength counts",
    )
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of the shares' intervals")


def consensus(
    votes: pd.DataFrame, method: Weighing = "majority", params: ConsensusParams | None = None
) -> pd.DataFrame:
    """CONSENSUS of a VOTES frame: a row per comparison that somebody judged, by id; the order of
    votes is irrelevant.

    Raises FrameError for a frame that breaks its schema.
    """
    params = params or ConsensusParams()
    judged = judgements(votes)
    if judged.empty:
        return CONSENSUS.empty_frame()
    codes, ids = pd.factorize(judged["comparison_id"], sort=True)
    n, weights = len(ids), _weights(judged, method, params)
    said = {choice: (judged["choice"] == choice).to_numpy() for choice in JUDGING}
    of = {
        choice: np.bincount(codes, weights=weights * is_said, minlength=n)
        for choice, is_said in said.items()
    }
    # Weights are small whole numbers: sums are exact, and equal is equal whatever the order they
    # were added in.
    sides = np.column_stack([of[Choice.A], of[Choice.B], of[Choice.TIE] + of[Choice.BOTH_BAD]])
    heaviest, total = sides.max(axis=1), sides.sum(axis=1)
    is_won = (sides == heaviest[:, None]).sum(axis=1) == 1
    neither = np.where(
        of[Choice.BOTH_BAD] > of[Choice.TIE], Choice.BOTH_BAD.value, Choice.TIE.value
    )
    winner = np.select(
        [sides.argmax(axis=1) == 0, sides.argmax(axis=1) == 1],
        [Choice.A.value, Choice.B.value],
        neither,
    )
    share, n_votes = heaviest / total, np.bincount(codes, minlength=n)
    low, high = wilson_bounds(
        share, total**2 / np.bincount(codes, weights=weights**2, minlength=n), params.level
    )
    is_agreed = is_won & (share >= params.min_share - 1e-12)
    last_seq = np.zeros(n, dtype=np.int64)
    np.maximum.at(last_seq, codes, judged["seq"].to_numpy())
    n_said = {
        f"n_{PLURALS.get(choice, choice)}": np.bincount(codes[is_said], minlength=n)
        for choice, is_said in said.items()
    }
    frame = pd.DataFrame(
        {
            "comparison_id": ids,
            "prompt_id": judged["prompt_id"].to_numpy()[np.unique(codes, return_index=True)[1]],
            "state": np.where(
                n_votes < params.min_votes, "open", np.where(is_agreed, "agreed", "disputed")
            ),
            "choice": pd.Series(winner, dtype="str").where(is_won),
            "share": share,
            "low": low,
            "high": high,
            "n_votes": n_votes,
            **n_said,
            "last_seq": last_seq,
        }
    )
    return check_frame(frame, CONSENSUS)


def judgements(votes: pd.DataFrame) -> pd.DataFrame:
    """The rows of a VOTES frame that consensus counts: of people, counting, on no repeat,
    that say something.
    """
    checked = drop_machine_votes(counting(votes))
    return checked[checked["repeat_of"].isna() & checked["choice"].isin(JUDGING)]


def adjudication_queue(agreed: pd.DataFrame) -> pd.DataFrame:
    """The disputed rows of a CONSENSUS frame, for somebody to decide: the most evenly split first,
    then those with most votes.
    """
    disputed = check_frame(agreed, CONSENSUS).query("state == 'disputed'")
    # Whole billionths: p and 1 - p of mirrored votes are one share, and differ in the last bit.
    order = disputed.assign(
        no_winner=disputed["choice"].notna(), billionths=(disputed["share"] * SHARES_APART).round()
    ).sort_values(
        ["no_winner", "billionths", "n_votes", "comparison_id"], ascending=[True, True, False, True]
    )
    return disputed.loc[order.index].reset_index(drop=True)


def _weights(judged: pd.DataFrame, method: Weighing, params: ConsensusParams) -> Floats:
    if method == "majority":
        return np.ones(len(judged))
    return np.asarray(judged["strength"].fillna(params.strength_when_missing), dtype=np.float64)
