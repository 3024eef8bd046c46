"""Marks of suspect votes: to which votes each applies, and that they are the figures of
`votes.annotators`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.feedback.votes.annotators import annotator_figures
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.joint_model import joint_model
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_marks import MARKS

LONG = "x" * 250  # both completions: 5 s at 100 characters a second
Cast = Callable[..., int]


@pytest.fixture
def cast(store: Store, make_vote: Callable[..., NewVote]) -> Cast:
    """Casts a vote of `ann` whose side a stood left, and returns its seq."""

    def cast_one(comparison_id: str, choice: str = "a", *, key: str = "", **more: Any) -> int:
        more = {"is_swapped": False, "idempotency_key": f"{comparison_id}/{key}"} | more
        return store.votes.cast(make_vote(comparison_id, choice=choice, **more)).seq

    return cast_one


def publish(store: Store, frame: pd.DataFrame, **more: object) -> None:
    comparisons = frame.assign(completion_a=LONG, completion_b=LONG, **more)
    store.comparisons.publish(comparisons, published_at=store.database.clock.now())


def find(store: Store, mark: Any) -> list[int]:
    marked = store.vote_marks.find(mark, "ann", before_seq=None, limit=50)
    assert marked == store.vote_marks.find(mark, None, before_seq=None, limit=50)
    return marked[::-1]


def test_same_as_before_needs_known_sides(store: Store, make_comparisons: Any, cast: Cast) -> None:
    publish(store, make_comparisons(7))
    seqs = [
        cast("c0"),
        cast("c1", "b", is_swapped=True),
        cast("c2", is_swapped=None),
        cast("c3"),
        cast("c4", "tie"),
        cast("c5", "both_bad"),
        cast("c6", "b"),
    ]
    assert find(store, "same_as_before") == [seqs[1], seqs[5]]
    assert store.vote_marks.count()["ann"].marks["same_as_before"] == (2, 4)


def test_marks_use_the_last_revision_and_no_skips(
    store: Store, make_comparisons: Any, cast: Cast
) -> None:
    publish(store, make_comparisons(3))
    first = cast("c0", duration_s=1)
    cast("c1", "b", duration_s=9)
    voted = store.votes.page(limit=5)
    replaced = next(vote.vote_id for vote in voted if vote.seq == first)
    cast("c0", "b", key="again", supersedes=replaced)
    cast("c2", "skip")
    assert store.vote_marks.count()["ann"].n_votes == 2
    assert (find(store, "too_fast"), find(store, "same_as_before")) == ([], [4 - 1])


def test_equal_pair_is_a_duplicate_unless_a_repeat(
    store: Store, make_comparisons: Any, cast: Cast
) -> None:
    publish(store, make_comparisons(1, prefix="c"))
    publish(store, make_comparisons(1, prefix="other"))
    publish(store, make_comparisons(1, prefix="again", repeat_of="c0"))
    cast("c0")
    second = cast("other0")
    cast("again0")
    assert find(store, "duplicate") == [second]
    assert store.vote_marks.count()["ann"].marks["duplicate"] == (1, 2)


def test_marks_are_the_figures_of_annotators(
    store: Store, make_comparisons: Any, make_vote: Callable[..., NewVote]
) -> None:
    publish(store, make_comparisons(40), prompt=[f"prompt {n}" for n in range(40)])
    rng = np.random.default_rng(3)
    seconds = (1.0, 4.9, 9.0, None)
    store.votes.cast_many(
        [
            make_vote(
                f"c{n}",
                f"ann{who}",
                str(rng.choice(["a", "b", "tie", "skip"])),
                is_swapped=rng.choice([True, False, None]),
                duration_s=seconds[rng.integers(4)],
            )
            for n in range(40)
            for who in range(4)
        ]
    )
    votes = store.votes.log()
    comparisons = store.comparisons.with_ids([f"c{n}" for n in range(40)])
    figures = annotator_figures(votes, joint_model(counting_votes(votes)), comparisons=comparisons)
    figures = figures.set_index("annotator_id")
    counts = store.vote_marks.count()
    for who, counts_of_one in counts.items():
        assert counts_of_one.n_votes == figures.loc[who, "n_votes"]
        for mark, n in (("too_fast", "n_read"), ("same_as_before", "n_followed")):
            marked, of = counts_of_one.marks[mark]
            assert (of, marked / of) == (figures.loc[who, n], pytest.approx(figures.loc[who, mark]))
    assert len(counts) == 4
    assert set(MARKS) == set(counts_of_one.marks)
