"""How far annotators agree, with each other and with themselves. Knows a frame of votes; knows no
model.

The noise ceiling is what a perfect model could reach against single votes: no accuracy means
anything without it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.frames import VOTES, check_frame
from rlhf_pipeline.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.records import Choice, Interval, Record
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting, repeat_passes

SIDED = (Choice.A, Choice.B)
JUDGING = (*SIDED, Choice.TIE, Choice.BOTH_BAD)
SWAPPED = {Choice.A: Choice.B, Choice.B: Choice.A}


class AgreementParams(BootstrapParams):
    """How the intervals of agreement are drawn."""


class Agreement(Record):
    """Agreement among the votes of one frame. An interval is None where nothing overlaps: missing,
    not perfect.
    """

    n_votes: int
    n_comparisons: int
    n_annotators: int
    n_overlapping: int = Field(description="comparisons that two or more annotators judged")
    share_of_ties: float | None = Field(
        description="tie and both_bad among the votes that judged; None without any"
    )
    raw_agreement: Interval | None = Field(
        description="two annotators, one comparison: same choice; ties count as a choice"
    )
    self_consistency: Interval | None = Field(
        description="one annotator, the same two completions again (a swapped repeat, or a later "
        "pass): same judgement"
    )
    noise_ceiling: Interval | None = Field(
        description="one vote against the majority of the others, ties left out"
    )


def agreement(votes: pd.DataFrame, params: AgreementParams | None = None) -> Agreement:
    """All measures of agreement of a VOTES frame: of the votes that count, and `self_consistency`
    also of earlier passes.

    Skips judge nothing and machines are no people: both are left out.
    """
    params = params or AgreementParams()
    judged = _judging_votes(votes)
    first = judged[judged["repeat_of"].isna()]
    n_ties = int(judged["choice"].isin([Choice.TIE, Choice.BOTH_BAD]).sum())
    return Agreement(
        n_votes=len(judged),
        n_comparisons=int(first["comparison_id"].nunique()),
        n_annotators=int(judged["annotator_id"].nunique()),
        n_overlapping=int((first.groupby("comparison_id")["annotator_id"].nunique() >= 2).sum()),
        share_of_ties=n_ties / len(judged) if len(judged) else None,
        raw_agreement=_raw_agreement(first, params),
        self_consistency=self_consistency(votes, params),
        noise_ceiling=noise_ceiling(votes, params),
    )


def noise_ceiling(votes: pd.DataFrame, params: AgreementParams | None = None) -> Interval | None:
    """How often one vote agrees with the majority of the other votes on its comparison; None if
    nothing overlaps.

    Only votes for a or b on first passes count; a vote whose others are split evenly is left out.
    The bootstrap draws prompts. This is the number that stands beside an accuracy against single
    votes; against a majority of m votes a perfect model can do better than it.
    """
    judged = _judging_votes(votes)
    sided = judged[judged["repeat_of"].isna() & judged["choice"].isin([Choice.A, Choice.B])]
    is_a = (sided["choice"] == Choice.A).astype("int64")
    by_comparison = is_a.groupby(sided["comparison_id"])
    balance = 2 * (by_comparison.transform("sum") - is_a) - (by_comparison.transform("size") - 1)
    counted = balance != 0
    if not counted.any():
        return None
    agrees = (balance[counted] > 0) == (is_a[counted] == 1)
    return interval_of_mean(
        agrees.to_numpy(),
        groups=sided.loc[counted, "prompt_id"].to_numpy(),
        params=params or AgreementParams(),
    )


def _judging_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """People's votes that count and are no skips."""
    counted = drop_machine_votes(counting(votes))
    return counted[counted["choice"] != Choice.SKIP]


def _raw_agreement(first: pd.DataFrame, params: BootstrapParams) -> Interval | None:
    """Share of agreeing pairs of votes, counted per comparison without listing the pairs."""
    per_choice = first.groupby(["prompt_id", "comparison_id", "choice"]).size()
    same = _n_pairs(per_choice).groupby(["prompt_id", "comparison_id"]).sum()
    all_pairs = _n_pairs(per_choice.groupby(["prompt_id", "comparison_id"]).sum())
    overlapping = all_pairs[all_pairs > 0]
    if overlapping.empty:
        return None
    share = same[overlapping.index] / overlapping
    groups: npt.NDArray[np.object_] = overlapping.index.get_level_values("prompt_id").to_numpy()
    return interval_of_mean(
        share.to_numpy(), groups=groups, weights=overlapping.to_numpy(), params=params
    )


def _n_pairs(counts: pd.Series) -> pd.Series:
    return counts * (counts - 1) / 2


def repeat_judgements(votes: pd.DataFrame, choices: Sequence[Choice] = JUDGING) -> pd.DataFrame:
    """prompt_id, annotator_id and `same`, whether it is the same judgement: a row per repeat of an
    original that its annotator judged too, and per later pass. Only where both are among `choices`.
    Raises FrameError."""
    people = drop_machine_votes(check_frame(votes, VOTES))
    counted = counting(people)
    cards = _repeat_card_judgements(counted[counted["choice"].isin(choices)])
    passes = repeat_passes(people)
    both = passes[passes["choice"].isin(choices) & passes["choice_first"].isin(choices)]
    # The sides of a later pass are those of the first.
    later = both[["prompt_id", "annotator_id"]].assign(
        same=(both["choice"] == both["choice_first"]).astype(bool)
    )
    return pd.concat([cards, later], ignore_index=True)


def self_consistency(
    votes: pd.DataFrame,
    params: AgreementParams | None = None,
    choices: Sequence[Choice] = JUDGING,
) -> Interval | None:
    """How often an annotator judges the same two completions the same again; None where nobody did.
    As in `repeat_judgements`.
    """
    again = repeat_judgements(votes, choices)
    if again.empty:
        return None
    same, groups = again["same"].to_numpy(dtype=bool), again["prompt_id"].to_numpy()
    return interval_of_mean(same, groups=groups, params=params or AgreementParams())


def _repeat_card_judgements(judged: pd.DataFrame) -> pd.DataFrame:
    """Of every repeat whose annotator also judged the original."""
    repeats = judged[judged["repeat_of"].notna()]
    originals = judged[["comparison_id", "annotator_id", "choice"]].rename(
        columns={"comparison_id": "repeat_of"}
    )
    both = repeats.merge(originals, on=["repeat_of", "annotator_id"], suffixes=("", "_first"))
    # A repeat shows the same completions with sides swapped: choosing a again is a contradiction.
    unswapped = both["choice"].map(lambda choice: SWAPPED.get(choice, choice))
    return both[["prompt_id", "annotator_id"]].assign(
        same=(unswapped == both["choice_first"]).astype(bool)
    )
