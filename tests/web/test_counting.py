"""Votes counted as they come: each once, whatever happens between."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import AnnotatorKind, NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.progress.vote_counter import VoteCounter
from tests.web.conftest import NOON, comparisons
from tests.web.databases import on_sqlite

pytestmark = on_sqlite


def vote(store: Store, i: int, **more: object) -> str:
    values = {
        "annotator_kind": "human",
        "choice": "a",
        "voted_at": NOON + timedelta(minutes=i),
        "origin": "api",
        "duration_s": float(i),
    }
    return store.votes.cast(
        NewVote.model_validate(
            {
                "comparison_id": f"c{i:04}",
                "annotator_id": "ann",
                "idempotency_key": f"k{i}",
                **values,
                **more,
            }
        )
    ).vote_id


@pytest.mark.parametrize("fails", ["tallies", "paces"])
def test_what_was_read_before_the_store_failed_is_not_counted_twice(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, fails: str
):
    store = open_store()
    store.comparisons.publish(comparisons(6), published_at=NOON)
    ids = [vote(store, i) for i in range(5)]
    vote(store, 0, choice="b", supersedes=ids[0], idempotency_key="again")
    progress = VoteCounter(store)
    with monkeypatch.context() as broken:
        broken.setattr(
            store.votes, fails, lambda *_, **__: (_ for _ in ()).throw(StoreError("gone"))
        )
        for _ in range(3):
            with pytest.raises(StoreError):
                progress.counts()
    counted = progress.counts()
    assert (counted.seq, counted.n_votes, sum(counted.by_day.values())) == (6, 5, 5)
    assert list(counted.paces["ann"]) == [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]
    vote(store, 5)
    assert progress.counts().n_votes == 6


def test_imported_votes_count_on_the_day_they_were_cast(open_store: Callable[..., Store]):
    """Not on that of the import, and on no day where nobody wrote it down."""
    store = open_store()
    store.comparisons.publish(comparisons(3), published_at=NOON)
    last_year = NOON - timedelta(days=365)
    vote(store, 0, origin="import", voted_at=last_year)
    vote(store, 1, origin="import", voted_at=None)
    vote(store, 2, origin="import", voted_at=None, annotator_id="undated")
    counted = VoteCounter(store).counts()
    assert (counted.n_votes, counted.by_day) == (3, {last_year.date(): 1})
    assert counted.last_at == {"ann": last_year}
    assert counted.by_annotator[("ann", AnnotatorKind.HUMAN)] == 2
