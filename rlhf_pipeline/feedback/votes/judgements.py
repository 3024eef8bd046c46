"""Votes as arrays for the joint model: annotator, comparison, side, strength."""

from collections.abc import Iterator
from copy import copy

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.records import Choice

Ints = npt.NDArray[np.int64]

SIDES = {Choice.A: 1, Choice.B: -1, Choice.TIE: 0, Choice.BOTH_BAD: 0}
VOTES_AT_ONCE = 4_000  # votes per batch, so that intermediate arrays fit into a core's cache


def judged_comparison(judgements: pd.DataFrame) -> pd.Series:
    """The comparison of each vote; for a repeat, its original."""
    return judgements["repeat_of"].fillna(judgements["comparison_id"])


class JudgementArrays:
    """Votes without skips as arrays (n,), sorted by comparison."""

    def __init__(self, judgements: pd.DataFrame):
        is_repeat = judgements["repeat_of"].notna().to_numpy()
        # 1 if a was displayed left, -1 if b was, 0 if unknown
        swapped = judgements["is_swapped"]
        card_side = np.where(
            swapped.isna(), 0, np.where(swapped.fillna(False).to_numpy(dtype=bool), -1, 1)
        )
        self.ids, first, comparison = _number_ids(judged_comparison(judgements))
        self.prompts = judgements["prompt_id"].to_numpy(dtype=object)[first]
        self.names, _, annotator = _number_ids(judgements["annotator_id"])
        side = (
            judgements["choice"]
            .map({str(choice): side for choice, side in SIDES.items()})
            .to_numpy(dtype=np.int64)
        )
        strength = judgements["strength"].fillna(0).to_numpy(dtype=np.int64)
        # Rounding of sums depends on the order; sorting makes the model independent of the order of
        # votes.
        order = np.lexsort((strength, side, card_side, is_repeat, annotator, comparison))
        self.comparison, self.annotator = comparison[order], annotator[order]
        self.side, self.strength = side[order], strength[order]
        # A repeat swaps a and b: a vote for its a is a vote for b of the original.
        turned = np.where(is_repeat[order], -1, 1)
        self.side = self.side * turned
        # Side on which a of the original was displayed; a card may swap the sides once more.
        self.display_side = turned * card_side[order]
        self.n_prompts = judgements["prompt_id"].nunique()
        self.starts = np.flatnonzero(np.diff(self.comparison, prepend=-1))
        self.has_ties = bool((side == 0).any())
        self.has_strengths = bool((strength > 0).any())
        self.has_sides = bool(card_side.any())

    def __len__(self) -> int:
        return len(self.comparison)

    def with_answers(self, side: Ints, strength: Ints) -> "JudgementArrays":
        """The same annotators and comparisons with other sides and strengths."""
        other = copy(self)
        other.side, other.strength = side, strength
        return other

    def select_comparisons(self, indices: Ints, *, share: float) -> "JudgementArrays":
        """The votes on some comparisons, given by their indices, which are a `share` of all.

        Annotators with similar numbers of votes are merged into one, so that each has about as many
        votes as before.
        """
        other = copy(self)
        mask = np.isin(self.comparison, indices)
        other.side, other.strength, other.display_side = (
            column[mask] for column in (self.side, self.strength, self.display_side)
        )
        other.ids, other.prompts = self.ids[indices], self.prompts[indices]
        other.comparison = np.searchsorted(indices, self.comparison[mask])
        rank = np.argsort(np.argsort(np.bincount(self.annotator), kind="stable"), kind="stable")
        groups, other.annotator = np.unique(
            (rank * share).astype(np.int64)[self.annotator[mask]], return_inverse=True
        )
        other.names = groups.astype(str)
        other.n_prompts = len(set(other.prompts))
        other.starts = np.flatnonzero(np.diff(other.comparison, prepend=-1))
        return other

    def parts(self) -> Iterator[slice]:
        """Slices of whole comparisons with about VOTES_AT_ONCE votes each."""
        begin = 0
        while begin < len(self):
            following = np.searchsorted(self.starts, begin + VOTES_AT_ONCE)
            end = int(self.starts[following]) if following < len(self.starts) else len(self)
            yield slice(begin, end)
            begin = end


def _number_ids(ids: pd.Series) -> tuple[npt.NDArray[np.str_], Ints, Ints]:
    """Sorted distinct ids, the first row of each, and the index of each row's id."""
    codes, distinct = pd.factorize(ids, sort=True)
    return (
        distinct.to_numpy(dtype=str),
        np.unique(codes, return_index=True)[1],
        codes.astype(np.int64),
    )
