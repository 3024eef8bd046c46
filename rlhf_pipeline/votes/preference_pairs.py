"""Votes to preference pairs by majority. Knows frames of votes and comparisons; knows no model and
no storage.
"""

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import UnknownComparison
from rlhf_pipeline.frames import COMPARISONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.records import Choice, Record
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.splits import splits_of

MAX_STRENGTH = 4


class PairParams(BaseModel):
    """What makes a majority."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    min_votes: int = Field(
        default=1, ge=1, description="Votes for a or b a comparison needs to become a pair"
    )
    min_agreement: float = Field(
        default=0.5,
        ge=0.5,
        le=1,
        description="Smallest share of those votes on the majority's side",
    )
    keep_even_splits: bool = Field(
        default=False,
        description="Keep comparisons with as many votes for a as for b, at agreement 0.5 and "
        "margin 0; needed for unbiased probabilities where comparisons get an even number of votes",
    )
    keep_only_ties: bool = Field(
        default=False,
        description="Keep comparisons nobody preferred a side of, at 0 votes, agreement 0.5 and "
        "margin 0: for a reward model that learns ties (loss davidson, or the "
        "annotator model's labels)",
    )
    strength_when_missing: int = Field(
        default=2, ge=1, le=MAX_STRENGTH, description="Strength of a vote that states none"
    )
    with_machine_votes: bool = Field(
        default=False,
        description="Count votes of machines too: a model is then taught by what an earlier one "
        "said",
    )


class PairCounts(Record):
    """What became of the votes: nothing is dropped without being counted."""

    n_votes: int
    n_ties: int
    n_skips: int
    n_machine: int = Field(
        default=0, description="votes of machines, which teach nothing unless asked for"
    )
    n_repeats: int = Field(
        description="votes on repeats; they measure self-consistency and make no pair"
    )
    n_flagged: int = Field(
        default=0, description="votes on imported comparisons of identical or repeated completions"
    )
    n_comparisons: int = Field(description="comparisons with a vote, repeats left out")
    n_only_ties: int = Field(description="comparisons nobody preferred a side of")
    n_without_majority: int = Field(
        description="comparisons split evenly, too thinly voted or agreed on"
    )
    n_pairs: int
    n_mixed: int = Field(description="pairs that humans and others judged together")


def preference_pairs(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: PairParams | None = None
) -> pd.DataFrame:
    """One row per comparison with a majority, sorted by comparison id; the order of votes is
    irrelevant.

    Ties, `both_bad` and skips prefer no side and make no pair; `n_ties` counts the first two. Votes
    on repeats and flagged comparisons are left out, and votes of machines unless `params` ask for
    them. `margin` is the mean strength in the majority's direction over 4 (0 where the minority
    felt more strongly), `day` the last day a counted vote was cast on, `max_seq` the seq of the
    last vote of any kind: nothing later is in the pair. An imported split wins over the hash. No
    votes or only ties give the empty frame. Raises UnknownComparison for a vote whose comparison is
    not in `comparisons`, FrameError for frames that break their schema (a duplicate vote id, for
    one).
    """
    params = params or PairParams()
    votes, comparisons = (
        _training_votes(counting(votes), params),
        check_frame(comparisons, COMPARISONS),
    )
    tallies = _tallies(_unrepeated_votes(votes, comparisons), params)
    kept = tallies[_is_pair(tallies, params)]
    if kept.empty:
        return PREFERENCE_PAIRS.empty_frame()
    frame = kept.reset_index().merge(
        comparisons.drop(columns=["day"]), on="comparison_id", how="left", validate="one_to_one"
    )
    chose_a = frame["chosen_side"] == "a"
    frame["chosen"] = frame["completion_a"].where(chose_a, frame["completion_b"])
    frame["rejected"] = frame["completion_b"].where(chose_a, frame["completion_a"])
    frame["split"] = splits_of(frame)
    # which the annotator model gives later
    made = [name for name in PREFERENCE_PAIRS.columns if name not in ("soft_label", "label_seq")]
    return check_frame(frame[made].sort_values("comparison_id"), PREFERENCE_PAIRS)


def count_pairs(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: PairParams | None = None
) -> PairCounts:
    """How many votes and comparisons were dropped on the way to pairs, and why. Raises as
    `preference_pairs`.
    """
    params = params or PairParams()
    cast, comparisons = counting(votes), check_frame(comparisons, COMPARISONS)
    votes = _training_votes(cast, params)
    first = _unrepeated_votes(votes, comparisons)
    flagged = comparisons.loc[
        comparisons["flag"].notna() & comparisons["repeat_of"].isna(), "comparison_id"
    ]
    n_flagged = int((votes["comparison_id"].isin(flagged) & votes["repeat_of"].isna()).sum())
    tallies = _tallies(first, params)
    kept = tallies[_is_pair(tallies, params)]
    n_sided, n_kept_sided = int((tallies["n_votes"] > 0).sum()), int((kept["n_votes"] > 0).sum())
    return PairCounts(
        n_votes=len(cast),
        n_machine=len(cast) - len(votes),
        n_ties=int(votes["choice"].isin([Choice.TIE, Choice.BOTH_BAD]).sum()),
        n_skips=int((votes["choice"] == Choice.SKIP).sum()),
        n_repeats=len(votes) - len(first) - n_flagged,
        n_flagged=n_flagged,
        n_comparisons=int(first["comparison_id"].nunique()),
        n_only_ties=int(first["comparison_id"].nunique()) - n_sided,
        n_without_majority=n_sided - n_kept_sided,
        n_pairs=len(kept),
        n_mixed=int((kept["annotator_kind"] == "mixed").sum()),
    )


def _training_votes(votes: pd.DataFrame, params: PairParams) -> pd.DataFrame:
    return votes if params.with_machine_votes else drop_machine_votes(votes)


def _unrepeated_votes(votes: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """The votes on comparisons that repeat no other and are not flagged."""
    unknown = votes.loc[~votes["comparison_id"].isin(comparisons["comparison_id"])]
    if not unknown.empty:
        row = unknown.iloc[0]
        raise UnknownComparison(
            f"Vote {row['vote_id']} judges comparison {row['comparison_id']}, which is not among "
            f"the {len(comparisons)} comparisons ({len(unknown)} such votes). Hand in the "
            "comparisons of every day these votes judge."
        )
    left_out = comparisons.loc[
        comparisons["repeat_of"].notna() | comparisons["flag"].notna(), "comparison_id"
    ]
    return votes[votes["repeat_of"].isna() & ~votes["comparison_id"].isin(left_out)]


def _tallies(first: pd.DataFrame, params: PairParams) -> pd.DataFrame:
    """Per comparison id with a vote for a side, or only ties where those are kept: n_votes, n_ties,
    chosen_side, agreement, margin, annotator_kind, day, max_seq."""
    is_sided, is_tie = (
        first["choice"].isin(some) for some in ((Choice.A, Choice.B), (Choice.TIE, Choice.BOTH_BAD))
    )
    n_ties = first.loc[is_tie, "comparison_id"].value_counts()
    counted = first[is_sided]
    if params.keep_only_ties:
        counted = pd.concat(
            [counted, first[is_tie & ~first["comparison_id"].isin(counted["comparison_id"])]]
        )
    is_a, is_b = counted["choice"] == Choice.A, counted["choice"] == Choice.B
    strength = (
        counted["strength"].fillna(params.strength_when_missing).astype("float64") / MAX_STRENGTH
    )
    signed = strength * (is_a.astype("float64") - is_b.astype("float64"))
    # Texts as numbers in the texts' order: the least and greatest text of a group is slow to find.
    kind, kinds = pd.factorize(counted["annotator_kind"], sort=True)
    day, days = pd.factorize(counted["day"], sort=True)
    numbers = pd.DataFrame(
        {
            "is_sided": (is_a | is_b).astype("int64"),
            "is_a": is_a.astype("int64"),
            "signed": signed,
            "kind": kind,
            "day": day,
        }
    )
    tally = numbers.groupby(counted["comparison_id"], sort=True).agg(
        n_votes=("is_sided", "sum"),
        n_a=("is_a", "sum"),
        signed=("signed", "sum"),
        first_kind=("kind", "min"),
        last_kind=("kind", "max"),
        day=("day", "max"),
    )
    share_a = (tally["n_a"] / tally["n_votes"]).fillna(0.5)
    chose_a = share_a >= 0.5
    # Quarters of small integers are summed exactly, so the order of votes cannot show even in the
    # last digit.
    mean = tally["signed"] / tally["n_votes"].clip(lower=1)
    return tally.assign(
        # Of all that was said, ties and skips too: each is counted, or stands where another vote
        # stood before.
        max_seq=first.groupby("comparison_id")["seq"].max().reindex(tally.index),
        n_ties=n_ties.reindex(tally.index).fillna(0).astype("int64"),
        chosen_side=pd.Series(np.where(chose_a, "a", "b"), index=tally.index, dtype="str"),
        agreement=share_a.where(chose_a, 1 - share_a),
        margin=mean.where(chose_a, -mean).clip(lower=0.0).where(share_a != 0.5, 0.0),
        annotator_kind=np.where(
            tally["first_kind"] == tally["last_kind"], kinds.take(tally["first_kind"]), "mixed"
        ),
        day=days.take(tally["day"]),
    )


def _is_pair(tallies: pd.DataFrame, params: PairParams) -> pd.Series:
    agreed = (tallies["agreement"] > 0.5) & (tallies["agreement"] >= params.min_agreement)
    if params.keep_even_splits:
        agreed |= (tallies["agreement"] == 0.5) & (tallies["n_votes"] > 0)
    # there only where they are kept
    only_ties = (tallies["n_votes"] == 0) & (tallies["n_ties"] >= params.min_votes)
    return agreed & (tallies["n_votes"] >= params.min_votes) | only_ties
