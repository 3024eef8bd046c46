"""Marks of votes: what bears one, of how many it can be said, and that they are the figures of
`votes.annotators`.
"""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.votes.annotators import FiguresParams, annotator_figures
from rlhf_pipeline.votes.joint_model import joint_model
from rlhf_pipeline.votes.quality import (
    LEFT,
    MARKS,
    NEITHER,
    NO_TIME,
    RIGHT,
    SKIP,
    UNKNOWN,
    VOTES,
    concern_score,
    quality,
)
from tests.unit.votes.simulated import simulate


def cast(*rows: tuple[int, ...]) -> np.ndarray:
    """(comparison, shown) and what else is said of each, in order of seq."""
    full = [
        (
            i,
            c,
            more[0] if more else c,
            more[1] if len(more) > 1 else c,
            0,
            shown,
            more[2] if len(more) > 2 else NO_TIME,
        )
        for i, (c, shown, *more) in enumerate(rows, start=1)
    ]
    return np.array(full, dtype=VOTES)


def seqs(rows: np.ndarray, mark: str) -> list[int]:
    return quality(rows).marked[mark].seqs.tolist()


def test_same_as_before_needs_known_sides() -> None:
    rows = cast(
        (1, LEFT), (2, LEFT), (3, UNKNOWN), (4, LEFT), (5, NEITHER), (6, NEITHER), (7, RIGHT)
    )
    found = quality(rows).marked["same_as_before"]
    assert (found.seqs.tolist(), found.n) == ([2, 6], 4)


def test_the_last_turn_counts_whatever_the_order_of_rows() -> None:
    rows = cast((1, LEFT), (2, LEFT), (1, RIGHT), (3, RIGHT))
    rows["turn"][2] = 1  # the first vote was replaced
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        found = quality(rows[order])
        assert found.n_votes == 3
        assert found.marked["same_as_before"].seqs.tolist() == [4]
    rows["shown"][2] = SKIP  # it was taken back
    assert quality(rows).n_votes == 2


def test_same_pair_in_another_comparison_is_a_duplicate_unless_a_repeat() -> None:
    pair = 77
    rows = cast(
        (1, LEFT, 1, pair),
        (2, LEFT, 2, 5),
        (3, LEFT, 3, pair),
        (4, LEFT, 1, pair),
        (5, RIGHT, 5, pair),
    )
    found = quality(rows).marked["duplicate"]
    assert (found.seqs.tolist(), found.n) == ([3, 5], 4)


def test_too_fast_is_a_share_of_the_votes_with_a_time() -> None:
    found = quality(cast((1, LEFT, 1, 1, 1), (2, LEFT, 2, 2, 0), (3, LEFT))).marked["too_fast"]
    assert (found.seqs.tolist(), found.n) == ([1], 2)
    assert found.share is not None
    assert found.share.low < 0.5 < found.share.high


def test_without_votes_there_is_no_share_and_no_concern() -> None:
    found = quality(cast())
    assert found.n_votes == 0
    assert [found.marked[mark].share for mark in MARKS] == [None] * 3
    assert concern_score(found) == 0.0
    one = quality(cast((1, LEFT)))
    assert one.marked["duplicate"].share is not None
    assert one.marked["duplicate"].share.high > 0.5  # one vote says next to nothing


def test_straight_lining_is_listed_first_and_a_coin_never() -> None:
    steady = quality(cast(*((i, LEFT) for i in range(60))))
    coin = quality(
        cast(
            *(
                (i, side)
                for i, side in enumerate(np.random.default_rng(0).choice([LEFT, RIGHT], 400))
            )
        )
    )
    few = quality(cast((1, LEFT), (2, LEFT), (3, LEFT)))
    assert concern_score(steady) > 0.8
    assert concern_score(few) == concern_score(coin) == 0.0
    assert concern_score(steady, ["too_fast", "duplicate"]) == 0.0


def test_streamed_shares_equal_those_of_whole_frames() -> None:
    truth = simulate(80, n_annotators=7, seed=3)
    rng = np.random.default_rng(1)
    votes = truth.votes.assign(
        is_swapped=pd.array(rng.choice([True, False, None], len(truth.votes)), dtype="boolean"),
        duration_s=rng.choice([1.0, 5.0, 9.0, np.nan], len(truth.votes)),
    )
    shown = truth.comparisons.assign(completion_a="a" * 300, completion_b="b" * 200)
    told = annotator_figures(votes, joint_model(votes), comparisons=shown)
    told = told.set_index("annotator_id")
    side = votes["choice"].map({"a": 1, "b": -1}).fillna(0)
    for who, mine in votes.assign(side=side).groupby("annotator_id"):
        swapped = mine["is_swapped"].fillna(False).astype(bool)
        said = np.where(
            mine["is_swapped"].isna(), UNKNOWN, np.where(swapped, -mine["side"], mine["side"])
        )
        fast = np.where(
            mine["duration_s"].isna(),
            NO_TIME,
            mine["duration_s"] * FiguresParams().fastest_reading < 500,
        )
        numbers = mine["comparison_id"].str[1:].astype(int)
        rows = np.array(
            [
                (s, c, c, c, 0, k, f)
                for s, c, k, f in zip(mine["seq"], numbers, said, fast, strict=True)
            ],
            dtype=VOTES,
        )
        found = quality(rows)
        assert found.n_votes == told.loc[who, "n_votes"]
        for mark, n in (("too_fast", "n_read"), ("same_as_before", "n_followed")):
            share = found.marked[mark].share
            assert found.marked[mark].n == told.loc[who, n]
            assert share is not None
            assert (share.value, share.low, share.high) == pytest.approx(
                tuple(told.loc[who, [mark, f"{mark}_low", f"{mark}_high"]])
            )
