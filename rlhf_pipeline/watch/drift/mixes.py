"""Counts what a window's votes consist of: choices, strengths, annotators, kinds of prompts."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import FrameError

Mixes = dict[str, dict[str, int]]  # space -> label -> number of prompts

SPACES = ("choices", "strengths", "annotators", "prompt_mix")
MAX_CHANGES = 3  # labels named in a report


def count_mixes(votes: pd.DataFrame, comparisons: pd.DataFrame) -> Mixes:
    """Labels of each space, from one vote per prompt: votes on one prompt resemble each other, and
    a test would count them as independent.

    `votes`: comparison_id, vote_id, annotator_id, choice, strength. `comparisons`: comparison_id,
    prompt_id, category and, of imported ones, source. Of a prompt the vote with the smallest id is
    taken, and for strengths the one with a strength. Raises FrameError naming a comparison that is
    missing.
    """
    lost = votes.loc[~votes["comparison_id"].isin(comparisons["comparison_id"]), "comparison_id"]
    if len(lost):
        raise FrameError(
            f"{len(lost)} votes are on comparisons that are missing from the given ones, first "
            f"{lost.iloc[0]}. Give the comparisons of these votes."
        )
    kinds = comparisons[["comparison_id", "prompt_id"]].assign(kind=_name_kinds(comparisons))
    joined = votes[["comparison_id", "vote_id", "annotator_id", "choice", "strength"]].merge(
        kinds, on="comparison_id", validate="many_to_one"
    )
    joined = joined.sort_values("vote_id")
    first = joined.drop_duplicates("prompt_id")
    strong = joined[joined["strength"].notna()].drop_duplicates("prompt_id")
    labels = {
        "choices": first["choice"],
        "strengths": strong["strength"].astype("int64"),
        "annotators": first["annotator_id"],
        "prompt_mix": first["kind"],
    }
    return {
        space: {str(label): int(n) for label, n in column.value_counts().sort_index().items()}
        for space, column in labels.items()
    }


def largest_changes(
    reference: Mapping[str, int], current: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The labels whose shares differ most, with both shares."""
    sizes = max(sum(reference.values()), 1), max(sum(current.values()), 1)
    labels = {*reference, *current}
    before, now = (
        {label: side.get(label, 0) / size for label in labels}
        for side, size in zip((reference, current), sizes, strict=True)
    )
    changed = [label for label in sorted(labels) if before[label] != now[label]]
    changed.sort(key=lambda label: -abs(now[label] - before[label]))
    return [
        {"label": label, "before": before[label], "now": now[label]}
        for label in changed[:MAX_CHANGES]
    ]


def _name_kinds(comparisons: pd.DataFrame) -> pd.Series:
    """The category of a prompt; of an imported one with its source."""
    category = comparisons["category"].fillna("unknown")
    if "source" not in comparisons:
        return category
    source = comparisons["source"]
    return category.where(source.isna(), source.fillna("") + ": " + category)
