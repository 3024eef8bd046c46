"""Votes as they were cast: nothing that was said is lost to what was said later."""

from collections.abc import Callable
from datetime import UTC, datetime

import pandas as pd
import pytest

from rlhf_pipeline.frames import check_frame
from rlhf_pipeline.records import Choice, NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.store import votes_as_cast as reader
from rlhf_pipeline.store.votes_as_cast import read_votes_as_cast
from rlhf_pipeline.votes.annotators_over_time import CASTS


def cast(
    store: Store,
    comparison_id: str,
    who: str,
    choice: str,
    *,
    key: str,
    day: int = 2,
    kind: str = "human",
    **more: object,
) -> str:
    receipt = store.votes.cast(
        NewVote(
            comparison_id=comparison_id,
            annotator_id=who,
            annotator_kind=kind,
            choice=Choice(choice),
            origin="api",
            idempotency_key=key,
            voted_at=datetime(2026, 1, day, 12, tzinfo=UTC),
            **more,
        )
    )
    return receipt.vote_id


@pytest.fixture
def said(store: Store, make_comparisons: Callable[..., pd.DataFrame]) -> Store:
    store.comparisons.publish(make_comparisons(3), published_at=datetime(2026, 1, 1, tzinfo=UTC))
    store.comparisons.publish(
        make_comparisons(1, prefix="r", repeat_of="c0"),
        published_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    first = cast(
        store, "c0", "ann", "a", key="1", duration_s=3.5, stated_confidence=0.75, is_swapped=True
    )
    cast(store, "c0", "ann", "b", key="2", day=9, supersedes=first)
    cast(store, "c1", "ann", "skip", key="3")
    cast(store, "c0", "machine", "a", key="4", kind="machine")
    cast(store, "r0", "ann", "a", key="5", day=3)
    return store


def test_every_vote_of_people_is_there_as_it_was_cast(said: Store) -> None:
    found = check_frame(read_votes_as_cast(said.database), CASTS)
    assert found[["day", "comparison_id", "choice", "pass_no"]].values.tolist() == [
        ["2026-01-02", "c0", "a", 1],
        ["2026-01-09", "c0", "b", 1],
        ["2026-01-02", "c1", "skip", 1],
        ["2026-01-03", "r0", "a", 1],
    ]
    first = found.iloc[0]
    assert (
        first["duration_s"],
        first["stated_confidence"],
        first["is_swapped"],
        first["prompt_id"],
    ) == (3.5, 0.75, True, "p0")
    assert found["is_swapped"].iloc[1:].isna().all()
    assert found["repeat_of"].iloc[3] == "c0"
    standing = said.votes.snapshot(["2026-01-02"])
    assert standing[standing["annotator_id"] == "ann"]["comparison_id"].tolist() == ["c1"], (
        "what stands has lost the first word"
    )


def test_up_to_a_seq_nothing_later_is_there(said: Store) -> None:
    assert read_votes_as_cast(said.database, up_to_seq=2)["choice"].tolist() == ["a", "b"]
    assert check_frame(read_votes_as_cast(said.database, up_to_seq=0), CASTS).empty


def test_what_is_read_in_pieces_is_the_same(said: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check_frame(read_votes_as_cast(said.database), CASTS)
    monkeypatch.setattr(reader, "AT_ONCE", 2)
    pd.testing.assert_frame_equal(check_frame(read_votes_as_cast(said.database), CASTS), whole)
