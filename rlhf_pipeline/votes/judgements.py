"""Votes as arrays for the joint model: whose, of what, which side of it, how strongly. Knows frames
of votes; knows no model.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.records import Choice

Ints = npt.NDArray[np.int64]

SIDES = {Choice.A: 1, Choice.B: -1, Choice.TIE: 0, Choice.BOTH_BAD: 0}
VOTES_AT_ONCE = 4_000  # with what is computed of them they stay in a core's own cache


def judged_comparison(judged: pd.DataFrame) -> pd.Series:
    """The comparison each vote is about: of a repeat, the one it repeats."""
    return judged["repeat_of"].fillna(judged["comparison_id"])


class JudgementArrays:
    """Votes for a side or for neither, sorted by comparison."""

    def __init__(self, judged: pd.DataFrame):
        is_repeat = judged["repeat_of"].notna().to_numpy()
        # 1 where a stood left, -1 where b did, 0 where nobody knows.
        swapped = judged["is_swapped"]
        left = np.where(
            swapped.isna(), 0, np.where(swapped.fillna(False).to_numpy(dtype=bool), -1, 1)
        )
        self.ids, first, comparison = _number_ids(judged_comparison(judged))
        self.prompts = judged["prompt_id"].to_numpy(dtype=object)[first]
        self.names, _, annotator = _number_ids(judged["annotator_id"])
        side = (
            judged["choice"]
            .map({str(choice): side for choice, side in SIDES.items()})
            .to_numpy(dtype=np.int64)
        )
        strength = judged["strength"].fillna(0).to_numpy(dtype=np.int64)
        # Sums depend on the order in the last bits: the same votes are to give the same model
        # however they come.
        order = np.lexsort((strength, side, left, is_repeat, annotator, comparison))
        self.comparison, self.annotator = comparison[order], annotator[order]
        self.side, self.strength = side[order], strength[order]
        # On a repeat a and b have changed places: what favours a there, favours b of the original.
        turned = np.where(is_repeat[order], -1, 1)
        self.side = self.side * turned
        # The same of a of the original: a card may have swapped the sides of either once more.
        self.shown = turned * left[order]
        self.n_prompts = judged["prompt_id"].nunique()
        self.starts = np.flatnonzero(np.diff(self.comparison, prepend=-1))
        self.has_ties, self.has_strengths, self.has_sides = (
            bool((side == 0).any()),
            bool((strength > 0).any()),
            bool(left.any()),
        )

    def __len__(self) -> int:
        return len(self.comparison)

    def parts(self) -> Iterator[slice]:
        """Whole comparisons, some VOTES_AT_ONCE votes at a time."""
        begin = 0
        while begin < len(self):
            following = np.searchsorted(self.starts, begin + VOTES_AT_ONCE)
            end = int(self.starts[following]) if following < len(self.starts) else len(self)
            yield slice(begin, end)
            begin = end


def _number_ids(ids: pd.Series) -> tuple[npt.NDArray[np.str_], Ints, Ints]:
    """The distinct ones in their order, where each stands first, and the number of every row's."""
    codes, distinct = pd.factorize(ids, sort=True)
    return (
        distinct.to_numpy(dtype=str),
        np.unique(codes, return_index=True)[1],
        codes.astype(np.int64),
    )
