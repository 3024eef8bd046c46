"""Counts new votes into the sums of votes, and adds those that are not counted yet."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from rlhf_pipeline.records import AnnotatorCell
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes.sums import (
    count_by_annotator,
    select_counted,
    subtract_sums,
    sum_votes,
)

VOTES_AT_ONCE = 5_000  # one to two seconds


class SumsChange(NamedTuple):
    """What to add to the sums of votes, and to the numbers of votes by annotator."""

    sums: pd.DataFrame
    by_annotator: Mapping[AnnotatorCell, int]


def count_new_votes(store: Store, *, most: int | None = None, at_once: int = VOTES_AT_ONCE) -> int:
    """Count votes into the sums, the oldest first, until `most` are counted; returns how many are
    left. Safe in several processes at once.
    """
    n = 0
    while True:
        head = store.vote_sums.head()
        newest = store.votes.max_seq()
        if head.seq >= newest or (most is not None and n >= most):
            return newest - head.seq
        up_to = min(newest, head.seq + at_once)
        change = sum_change(store, head.seq, up_to)
        store.vote_sums.add(*change, after=head, up_to_seq=up_to)
        n += up_to - head.seq


def sum_change(store: Store, after_seq: int, up_to_seq: int) -> SumsChange:
    """What the votes between two seqs change in the sums: those of all votes on their comparisons
    now, less those before.
    """
    new = store.votes.comparison_ids(after_seq, up_to_seq=up_to_seq)
    votes = store.votes.log(comparison_ids=new, up_to_seq=up_to_seq)
    comparisons = store.comparisons.with_ids(new)
    annotators = votes["annotator_id"].unique().tolist()
    groups = store.vote_sums.first_origins(after_seq, up_to_seq)
    groups |= store.vote_sums.groups(annotators)
    after, before = (select_counted(some) for some in (votes, votes[votes["seq"] <= after_seq]))
    by_annotator = count_by_annotator(after, comparisons)
    by_annotator.subtract(count_by_annotator(before, comparisons))
    return SumsChange(
        subtract_sums(
            sum_votes(after, comparisons, groups), sum_votes(before, comparisons, groups)
        ),
        {cell: n for cell, n in by_annotator.items() if n},
    )
