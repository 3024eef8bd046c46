"""Which files were imported stands in the store from their first row to their last, also of those that were killed."""

import json
from datetime import UTC, datetime

import pytest

from rlhf_pipeline.errors import InvalidScores, StoreError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_an_import_is_started_and_then_finished_or_failed(store):
    one = store.imports.start("comparisons", "/data/pairs.csv", {"sha256": "ab"})
    store.imports.finish(one, {"sha256": "ab", "imported": 3})
    two = store.imports.start("votes", "/data/votes.csv", {"sha256": "cd"})
    store.imports.fail(two, {"sha256": "cd", "error": "no space is left"})
    first, second = store.imports.all()
    assert (first.import_id, first.kind, first.file, first.state) == (1, "comparisons", "/data/pairs.csv", "finished")
    assert json.loads(first.record)["imported"] == 3
    assert first.finished_at >= first.started_at
    assert (second.import_id, second.state) == (2, "failed")
    assert store.audit.verify() == 2  # each end is an act


def test_what_was_killed_is_failed_as_soon_as_the_next_one_starts(store):
    store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    assert [i.state for i in store.imports.all()] == ["started"]
    store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    killed, running = store.imports.all()
    assert (killed.state, running.state) == ("failed", "started")
    assert "killed, or the machine stopped" in json.loads(killed.record)["error"]


def test_an_import_that_never_began_cannot_end(store):
    with pytest.raises(StoreError, match="There is no import 7"):
        store.imports.finish(7, {})
    with pytest.raises(InvalidScores):
        store.imports.start("votes", "f", {"share": float("nan")})


def test_only_what_is_stored_is_known(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    keys = store.imports.pair_keys(["c0", "c2", "c9"])
    assert sorted(keys) == ["c0", "c2"]
    assert store.comparisons.with_pair_keys(keys.values()) == {key: name for name, key in keys.items()}
    cast = store.votes.cast(make_vote())
    assert store.imports.known_keys(["c0/ann", "c1/ann"]) == {"c0/ann"}
    assert store.imports.votes_on(["c0", "c1"]) == {("c0", "ann", "a", cast.voted_at)}


def test_of_many_ids_all_are_looked_up(store, make_comparisons):
    store.comparisons.publish(make_comparisons(600), published_at=NOON)
    wanted = [f"c{n}" for n in range(25_000)]
    assert len(store.imports.pair_keys(wanted)) == 600
    assert store.imports.known_keys(wanted) == set()
