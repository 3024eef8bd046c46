"""Makes preference pairs from votes by majority, and their training rows."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.conversations import (
    build_chat,
    parse_messages,
    split_turns,
    write_prompt,
)
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import Choice, Record
from rlhf_pipeline.feedback.votes.splits import splits_of
from rlhf_pipeline.feedback.votes.teaching import TeachingRule, TeachingVotes, teaching_votes

MAX_STRENGTH = 4
STRENGTH_WHEN_MISSING = 2  # of a vote without one


class PairParams(Parameters):
    """Rules for the majority of a pair."""

    min_votes: int = Field(default=1, ge=1, description="Minimum number of votes for a or b")
    min_agreement: float = Field(
        default=0.5,
        ge=0.5,
        le=1,
        description="Minimum share of these votes on the majority's side",
    )
    keep_even_splits: bool = Field(
        default=False,
        description="Keep comparisons with equally many votes for a and b, at agreement 0.5 and "
        "margin 0; needed for unbiased probabilities if comparisons get an even number of votes",
    )
    keep_only_ties: bool = Field(
        default=False,
        description="Keep comparisons with only ties, at 0 votes, agreement 0.5 and margin 0: for "
        "a reward model that learns ties (label annotators)",
    )
    with_machine_votes: bool = Field(
        default=False,
        description="Count machine votes too: a model is then trained on the judgements of an "
        "earlier model",
    )


class PairCounts(Record):
    """Number of votes and comparisons by outcome; nothing is dropped without being counted."""

    n_votes: int = Field(description="votes that teach")
    n_ties: int
    n_skips: int
    n_quarantined: int = Field(description="votes that a quarantine leaves out")
    n_overruled: int = Field(description="votes against an expert's decision")
    n_machine: int = Field(description="machine votes, left out unless `with_machine_votes`")
    n_repeats: int = Field(
        description="votes on repeats; they measure self-consistency and give no pair"
    )
    n_flagged: int = Field(
        description="votes on imported comparisons of identical or repeated completions"
    )
    n_gate: int = Field(default=0, description="votes that the gate asked for")
    n_comparisons: int = Field(description="comparisons with a vote, without repeats")
    n_only_ties: int = Field(description="comparisons without a vote for a or b")
    n_without_majority: int = Field(
        description="comparisons with an even split, too few votes or too little agreement"
    )
    n_pairs: int
    n_mixed: int = Field(description="pairs with votes of several kinds of annotators")


def make_pairs(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    params: PairParams | None = None,
    rule: TeachingRule | None = None,
) -> tuple[pd.DataFrame, PairCounts]:
    """PREFERENCE_PAIRS of VOTES, and what was left out: one row per comparison with a majority of
    the votes that teach (see `teaching_votes`), by comparison id; the order of votes is irrelevant.

    Ties, `both_bad` and skips give no pair; `n_ties` counts the first two. `margin` is the mean
    signed strength toward the majority divided by 4 (0 if the minority's strength is greater),
    `day` the latest day of a vote for a or b, `max_seq` the seq of the last vote of any kind. An
    imported split takes precedence over the hash. Without votes, or with only ties, the frame is
    empty. Raises UnknownComparison for a vote whose comparison is not in `comparisons`, FrameError
    if a frame breaks its schema (for example by a duplicate vote id).
    """
    params = params or PairParams()
    taught = teaching_votes(votes, comparisons, rule, with_machine_votes=params.with_machine_votes)
    tallies = _tallies(taught.votes, params)
    pairs = tallies[_is_pair(tallies, params)]
    counts = _count(taught, tallies, pairs)
    if pairs.empty:
        return PREFERENCE_PAIRS.empty_frame(), counts
    frame = pairs.reset_index().merge(
        comparisons.drop(columns=["day"]), on="comparison_id", how="left", validate="one_to_one"
    )
    chose_a = frame["chosen_side"] == "a"
    frame["chosen"] = frame["completion_a"].where(chose_a, frame["completion_b"])
    frame["rejected"] = frame["completion_b"].where(chose_a, frame["completion_a"])
    frame["split"] = splits_of(frame)
    sides = dict(zip(frame["comparison_id"], frame["chosen_side"], strict=True))
    by_dimension = _count_dimension_votes(taught.votes, sides)
    frame["dimension_votes"] = by_dimension.reindex(frame["comparison_id"]).to_numpy()
    # the annotator model adds soft_label and label_seq later
    columns = [name for name in PREFERENCE_PAIRS.columns if name not in ("soft_label", "label_seq")]
    return check_frame(frame[columns].sort_values("comparison_id"), PREFERENCE_PAIRS), counts


def _count(taught: TeachingVotes, tallies: pd.DataFrame, pairs: pd.DataFrame) -> PairCounts:
    choice = taught.votes["choice"]
    n_comparisons = int(taught.votes["comparison_id"].nunique())
    n_sided, n_sided_pairs = int((tallies["n_votes"] > 0).sum()), int((pairs["n_votes"] > 0).sum())
    left_out = {name: getattr(taught, name) for name in TeachingVotes._fields[1:]}
    return PairCounts(
        n_votes=len(choice),
        n_ties=int(choice.isin([Choice.TIE, Choice.BOTH_BAD]).sum()),
        n_skips=int((choice == Choice.SKIP).sum()),
        n_comparisons=n_comparisons,
        n_only_ties=n_comparisons - n_sided,
        n_without_majority=n_sided - n_sided_pairs,
        n_pairs=len(pairs),
        n_mixed=int((pairs["annotator_kind"] == "mixed").sum()),
        **left_out,
    )


def _tallies(first: pd.DataFrame, params: PairParams) -> pd.DataFrame:
    """One row per comparison with a vote for a side, or with only ties if these are kept: n_votes,
    n_ties, chosen_side, agreement, margin, annotator_kind, day, max_seq.
    """
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
    strength = counted["strength"].fillna(STRENGTH_WHEN_MISSING).astype("float64") / MAX_STRENGTH
    signed = strength * (is_a.astype("float64") - is_b.astype("float64"))
    # Texts as ordered codes, because the minimum and maximum of texts per group are slow.
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
    # Sums of quarters are exact, so the order of votes does not change even the last digit.
    mean = tally["signed"] / tally["n_votes"].clip(lower=1)
    return tally.assign(
        # Includes ties and skips: each counts, or replaces an earlier vote.
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
    # such rows exist only if they are kept
    only_ties = (tallies["n_votes"] == 0) & (tallies["n_ties"] >= params.min_votes)
    return agreed & (tallies["n_votes"] >= params.min_votes) | only_ties


def _count_dimension_votes(votes: pd.DataFrame, chosen_sides: Mapping[str, str]) -> pd.Series:
    """`dimension_votes` of PREFERENCE_PAIRS by comparison id, from the votes that teach; ties in a
    dimension are left out, as ties of the choice are, and so are comparisons without such votes.
    """
    judging = votes[votes["dimensions"].notna() & (votes["choice"] != Choice.SKIP)]
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for comparison_id, text in zip(judging["comparison_id"], judging["dimensions"], strict=True):
        chosen = chosen_sides.get(comparison_id)
        for name, side in json.loads(text).items() if chosen else ():
            if side in (Choice.A, Choice.B):
                counts[comparison_id][name][side != chosen] += 1
    return pd.Series(
        {
            pair_id: json.dumps(dimension_counts, sort_keys=True)
            for pair_id, dimension_counts in counts.items()
        },
        dtype="object",
    )


def read_dimension_votes(pairs: pd.DataFrame) -> pd.DataFrame:
    """The columns row (number of the pair in PREFERENCE_PAIRS), dimension, prompt_id, n_chosen and
    n (votes for a side), one row per pair and dimension that votes judge.
    """
    missing = pd.Series([None] * len(pairs), dtype="object")  # the column is optional
    texts = pairs.get("dimension_votes", missing)
    rows = [
        (row, name, prompt_id, chosen, chosen + rejected)
        for row, (text, prompt_id) in enumerate(zip(texts, pairs["prompt_id"], strict=True))
        if isinstance(text, str)
        for name, (chosen, rejected) in json.loads(text).items()
    ]
    return pd.DataFrame(rows, columns=["row", "dimension", "prompt_id", "n_chosen", "n"])


def training_rows(pairs: pd.DataFrame) -> list[dict[str, Any]]:
    """One JSON-ready mapping per pair, with TRL's preference columns `prompt, chosen, rejected,
    margin` first; in TRL's conversational form if a prompt is a conversation (`write_trl_texts`).

    Sorted by comparison id, so that the same pairs in any order give the same bytes.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id")
    first = ["prompt", "chosen", "rejected", "margin"]
    # Empty optional columns are omitted: they would change existing hashes.
    rest = [
        c
        for c in checked.columns
        if c not in first and not (PREFERENCE_PAIRS.columns[c].optional and checked[c].isna().all())
    ]
    ordered = checked[first + rest]
    rows: list[dict[str, Any]] = json.loads(
        ordered.to_json(orient="records", force_ascii=False, double_precision=15)
    )
    return write_trl_texts(rows)


def write_trl_texts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of prompt, chosen and rejected as TRL reads them: texts, or all as lists of messages if
    a prompt is a conversation.
    """
    if not any(split_turns(row["prompt"]) for row in rows):
        return list(rows)
    return [
        row
        | {"prompt": build_chat(row["prompt"])}
        | {side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
        for row in rows
    ]


def read_trl_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `write_trl_texts`, of one row. Raises ConversationError."""
    if not isinstance(row.get("prompt"), list):
        return dict(row)
    sides = {side: parse_messages(row.get(side))[-1].content for side in ("chosen", "rejected")}
    return {**row, "prompt": write_prompt(parse_messages(row["prompt"])), **sides}
