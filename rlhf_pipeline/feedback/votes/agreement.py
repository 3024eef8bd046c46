"""Measures how far annotators agree with each other and with themselves."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.core.intervals import interval_of_mean
from rlhf_pipeline.core.records import Choice, Interval, Record
from rlhf_pipeline.feedback.votes.counting import (
    counting_votes,
    drop_machine_votes,
    keep_rows,
    repeat_passes,
)

SIDED = (Choice.A, Choice.B)
JUDGING = (*SIDED, Choice.TIE, Choice.BOTH_BAD)
SWAPPED = {Choice.A: Choice.B, Choice.B: Choice.A}


class Agreement(Record):
    """Agreement among the votes of one frame. An interval is None if no votes overlap."""

    n_votes: int
    n_comparisons: int
    n_annotators: int
    n_overlapping: int = Field(description="comparisons with votes of two or more annotators")
    share_of_ties: float | None = Field(
        description="share of tie and both_bad among votes without skips; None without votes"
    )
    raw_agreement: Interval | None = Field(
        description="share of pairs of votes on one comparison with the same choice; ties are a "
        "choice"
    )
    self_consistency: Interval | None = Field(
        description="share of repeated judgements by one annotator (a swapped repeat or a later "
        "pass) that equal the first"
    )


def agreement(votes: pd.DataFrame) -> Agreement:
    """Every agreement measure of a VOTES frame. Only counting votes are used; `self_consistency`
    also uses earlier passes.

    Skips and machine votes are left out. Raises FrameError.
    """
    judgements = _judging_votes(votes)
    first = judgements[judgements["repeat_of"].isna()]
    n_ties = int(judgements["choice"].isin([Choice.TIE, Choice.BOTH_BAD]).sum())
    return Agreement(
        n_votes=len(judgements),
        n_comparisons=int(first["comparison_id"].nunique()),
        n_annotators=int(judgements["annotator_id"].nunique()),
        n_overlapping=int((first.groupby("comparison_id")["annotator_id"].nunique() >= 2).sum()),
        share_of_ties=n_ties / len(judgements) if len(judgements) else None,
        raw_agreement=_raw_agreement(first),
        self_consistency=self_consistency(votes),
    )


def _judging_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """Counting votes without machine votes and skips."""
    latest_votes = drop_machine_votes(counting_votes(votes))
    return keep_rows(latest_votes, latest_votes["choice"] != Choice.SKIP)


def _raw_agreement(first: pd.DataFrame) -> Interval | None:
    """Share of agreeing pairs of votes, computed from counts per comparison."""
    per_choice = first.groupby(["prompt_id", "comparison_id", "choice"]).size()
    same = _n_pairs(per_choice).groupby(["prompt_id", "comparison_id"]).sum()
    all_pairs = _n_pairs(per_choice.groupby(["prompt_id", "comparison_id"]).sum())
    overlapping = all_pairs[all_pairs > 0]
    if overlapping.empty:
        return None
    share = same[overlapping.index] / overlapping
    groups: npt.NDArray[np.object_] = overlapping.index.get_level_values("prompt_id").to_numpy()
    return interval_of_mean(share.to_numpy(), groups=groups, weights=overlapping.to_numpy())


def _n_pairs(counts: pd.Series) -> pd.Series:
    return counts * (counts - 1) / 2


def repeat_judgements(votes: pd.DataFrame, choices: Sequence[Choice] = JUDGING) -> pd.DataFrame:
    """One row per repeated judgement: `prompt_id, annotator_id, same`.

    A judgement is repeated on a repeat card whose original the annotator judged, or in a later
    pass. `same` says whether both agree. Rows where either choice is not in `choices` are left out.
    Raises FrameError.
    """
    people = drop_machine_votes(check_frame(votes, VOTES))
    latest_votes = counting_votes(people)
    cards = _repeat_card_judgements(keep_rows(latest_votes, latest_votes["choice"].isin(choices)))
    passes = repeat_passes(people)
    both = passes[passes["choice"].isin(choices) & passes["choice_first"].isin(choices)]
    # A later pass does not swap the sides.
    later = both[["prompt_id", "annotator_id"]].assign(
        same=(both["choice"] == both["choice_first"]).astype(bool)
    )
    return pd.concat([cards, later], ignore_index=True)


def self_consistency(votes: pd.DataFrame, choices: Sequence[Choice] = JUDGING) -> Interval | None:
    """Share of repeated judgements that equal the first, see `repeat_judgements`; None without
    any.
    """
    repeats = repeat_judgements(votes, choices)
    if repeats.empty:
        return None
    same, groups = repeats["same"].to_numpy(dtype=bool), repeats["prompt_id"].to_numpy()
    return interval_of_mean(same, groups=groups)


def _repeat_card_judgements(judgements: pd.DataFrame) -> pd.DataFrame:
    """`repeat_judgements` of repeat cards whose original the annotator judged."""
    repeats = judgements[judgements["repeat_of"].notna()]
    originals = judgements[["comparison_id", "annotator_id", "choice"]].rename(
        columns={"comparison_id": "repeat_of"}
    )
    both = repeats.merge(originals, on=["repeat_of", "annotator_id"], suffixes=("", "_first"))
    # A repeat swaps the sides: choosing a again contradicts the first choice.
    unswapped = both["choice"].map(lambda choice: SWAPPED.get(choice, choice))
    return both[["prompt_id", "annotator_id"]].assign(
        same=(unswapped == both["choice_first"]).astype(bool)
    )
