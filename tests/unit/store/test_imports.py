"""Which files were imported stands in the store from their first row to their last, also of those
that were killed.
"""

import json

from tests.unit.store.conftest import NOON


def test_an_import_is_started_and_then_finished_or_failed(store):
    import_id = store.imports.start("comparisons", "/data/pairs.csv", {"sha256": "ab"})
    store.imports.finish(import_id, {"sha256": "ab", "imported": 3})
    two = store.imports.start("votes", "/data/votes.csv", {"sha256": "cd"})
    store.imports.fail(two, {"sha256": "cd", "error": "no space is left"})
    first, second = store.imports.all()
    assert (first.import_id, first.kind, first.file, first.state) == (
        1,
        "comparisons",
        "/data/pairs.csv",
        "finished",
    )
    assert json.loads(first.record)["imported"] == 3
    assert first.finished_at >= first.started_at
    assert (second.import_id, second.state) == (2, "failed")
    assert store.audit.verify() == 2  # each end is an act


def test_killed_import_fails_when_the_next_starts(store):
    store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    assert [i.state for i in store.imports.all()] == ["started"]
    store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    killed, running = store.imports.all()
    assert (killed.state, running.state) == ("failed", "started")
    assert "killed or the machine stopped" in json.loads(killed.record)["error"]
    assert json.loads(killed.record)["sha256"] == "ab"  # by which its repetition is known


def unfinished(store):
    return [
        (half.import_id, half.first_day, half.n_days) for half in store.imports.find_unfinished()
    ]


def test_killed_import_is_unfinished_until_repeated(store):
    killed = store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    store.imports.mark_casting(killed, ["2016-02-02", "2016-01-31", "2016-02-02"])
    assert unfinished(store) == [(1, "2016-01-31", 2)]
    other = store.imports.start("votes", "/data/other.csv", {"sha256": "cd"})
    store.imports.mark_casting(other, ["2016-03-01"])
    store.imports.finish(other, {"sha256": "cd", "imported": 3})
    assert unfinished(store) == [(1, "2016-01-31", 2)]
    moved = store.imports.start("votes", "/elsewhere/votes.csv", {"sha256": "ab"})
    assert unfinished(store) == [(1, "2016-01-31", 2), (3, None, 0)]
    store.imports.finish(moved, {"sha256": "ab", "imported": 4})
    assert unfinished(store) == []
    assert json.loads(store.imports.all()[1].record) == {
        "sha256": "cd",
        "imported": 3,
        "days": ["2016-03-01"],
    }


def test_accepting_unfinished_imports_is_audited(store):
    assert store.imports.accept_unfinished() == []
    killed = store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    store.imports.mark_casting(killed, ["2016-01-31"])
    before = store.audit.verify()
    assert [half.file for half in store.imports.accept_unfinished()] == ["/data/votes.csv"]
    assert store.imports.find_unfinished() == []
    assert store.audit.verify() == before + 1
    (row,) = store.imports.all()
    assert row.state == "failed"  # it was never finished, and goes on saying so
    assert json.loads(row.record)["taken_as_is_at"]
    again = store.imports.start("votes", "/data/votes.csv", {"sha256": "ab"})
    store.imports.mark_casting(again, ["2016-02-01"])
    assert unfinished(store) == [(again, "2016-02-01", 1)]  # what comes later was not taken


def test_unstored_rows_are_not_known(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    stored = store.imports.find_fields(["c0", "c2", "c9"], ("pair_key",))
    keys = {name: fields["pair_key"] for name, fields in stored.items()}
    assert sorted(keys) == ["c0", "c2"]
    assert store.comparisons.with_pair_keys(keys.values()) == {
        key: name for name, key in keys.items()
    }
    cast = store.votes.cast(make_vote())
    assert store.imports.find_known_keys(["c0/ann", "c1/ann"]) == {"c0/ann"}
    assert store.imports.find_votes(["c0", "c1"]) == {("c0", "ann", "a", cast.voted_at)}
