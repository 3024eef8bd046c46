"""Data sets: versions stay as they were frozen, and their sources are found again."""

import pytest

from rlhf_pipeline.core.api_types.filters import DatasetFilter
from rlhf_pipeline.core.curation import (
    DatasetExport,
    DatasetQuality,
    DatasetQuery,
    FeedbackQuery,
    VoteQuery,
)
from rlhf_pipeline.core.errors import DatasetConflict, NotFound, StoreError
from rlhf_pipeline.core.records import NewFeedback
from rlhf_pipeline.feedback.datasets.quality import measure_quality
from tests.dataset_rows import AT, build_dataset_rows
from tests.unit.store.conftest import tamper

GOOD = DatasetQuality(score=1, parts=(), problems=(), n_rows=2)
BROKEN = GOOD.model_copy(update={"problems": ("Two sides are equal.",)})


def add(store, name="set", kind="preference", query=DatasetQuery()):  # noqa: B008 (frozen)
    return store.datasets.add(name, kind, query, "", actor="cara")


def build(store, **more):
    dataset = add(store, **more)
    return store.datasets.record_build(dataset.dataset_id, GOOD, actor="cara")


def freeze(store, dataset, rows=None):
    rows = build_dataset_rows() if rows is None else rows
    quality = measure_quality(rows, dataset.type)
    return store.datasets.freeze(dataset.dataset_id, rows, quality, actor="cara")


def make_export(version=1):
    return DatasetExport(
        version=version, format="trl", url="x", n_rows=2, sha256="0" * 64, exported_at=AT
    )


def test_a_data_set_is_read_back_as_it_was_added(store):
    query = DatasetQuery(votes=VoteQuery(categories=("factual",), min_agreement=0.7))
    dataset = add(store, query=query)
    assert (dataset.name, dataset.query, dataset.status) == ("set", query, "draft")
    assert store.datasets.get(dataset.dataset_id) == store.datasets.find("set") == dataset


def test_a_name_is_taken_once(store):
    dataset, other = add(store), add(store, "other")
    with pytest.raises(DatasetConflict, match="There is a data set 'set' already"):
        add(store)
    with pytest.raises(DatasetConflict, match="already"):
        store.datasets.change(other.dataset_id, name="set", actor="cara")
    assert store.datasets.change(dataset.dataset_id, name="set", actor="cara").name == "set"


def test_a_missing_data_set_is_named(store):
    with pytest.raises(NotFound, match="data set 7"):
        store.datasets.get(7)
    with pytest.raises(NotFound, match="'none'"):
        store.datasets.find("none")


def test_data_sets_are_listed_newest_first_without_archived_ones(store):
    for i, kind in enumerate(["preference", "sft", "unpaired", "sft"]):
        add(store, f"set {i}", kind)
    store.datasets.change(2, status="archived", actor="cara")
    for only, expected in (
        ({}, [4, 3, 1]),
        ({"limit": 2}, [4, 3]),
        ({"type": "sft"}, [4]),
        ({"status": "archived"}, [2]),
        ({"status": "ready"}, []),
    ):
        page = store.datasets.page(DatasetFilter(**only))
        assert [dataset.dataset_id for dataset in page] == expected, only
    assert [each.dataset_id for each in store.datasets.page(before_id=4)] == [3, 1]


def test_a_frozen_version_keeps_its_rows_and_query(store):
    dataset = build(store, query=DatasetQuery(votes=VoteQuery()))
    rows = build_dataset_rows(completion=["atlas — ü", "map"])
    version = freeze(store, dataset, rows)
    assert (version.version, version.n_rows, version.query) == (1, 2, dataset.query)
    assert store.datasets.rows(version.content_hash).equals(rows)
    assert store.datasets.rows(version.content_hash, after=0, limit=5).equals(
        rows[1:].reset_index(drop=True)
    )
    ready = store.datasets.get(dataset.dataset_id)
    assert (ready.status, ready.n_versions, ready.n_rows) == ("ready", 1, 2)


def test_an_edit_after_a_freeze_makes_another_version(store):
    dataset = build(store)
    first = freeze(store, dataset)
    store.datasets.change(dataset.dataset_id, query=DatasetQuery(votes=VoteQuery()), actor="cara")
    assert store.datasets.get(dataset.dataset_id).status == "curating"
    second = freeze(store, dataset, build_dataset_rows(3))
    assert store.datasets.versions(dataset.dataset_id) == [second, first]
    assert first.content_hash != second.content_hash
    assert len(store.datasets.rows(first.content_hash)) == 2
    assert store.datasets.version(dataset.dataset_id) == second
    assert store.datasets.version(dataset.dataset_id, 1) == first


def test_equal_rows_have_one_hash_and_are_stored_once(store):
    first, second = build(store), build(store, name="other")
    versions = freeze(store, first), freeze(store, second)
    assert versions[0].content_hash == versions[1].content_hash
    assert len(store.datasets.rows(versions[0].content_hash)) == 2


def test_the_type_is_part_of_the_hash(store):
    rows = build_dataset_rows(rejected=None, label=[True, False])
    first, second = build(store, kind="unpaired"), build(store, name="other", kind="sft")
    assert freeze(store, first, rows).content_hash != freeze(store, second, rows).content_hash


def test_rows_of_an_interrupted_freeze_are_used(store, monkeypatch):
    dataset, rows = build(store), build_dataset_rows(1_200)

    def end_after_two(batches):
        yield from list(batches)[:2]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.database, "with_backoff", end_after_two)
        with pytest.raises(KeyboardInterrupt):
            freeze(store, dataset, rows)
    assert store.datasets.versions(dataset.dataset_id) == []
    version = freeze(store, dataset, rows)
    assert store.datasets.rows(version.content_hash).equals(rows)
    for source in ("comparison:c0", "comparison:c1199"):
        assert len(store.datasets.versions_of(source)) == 1


def test_a_broken_set_is_not_frozen(store):
    dataset = build(store)
    with pytest.raises(DatasetConflict, match=r"cannot become ready\. Two sides are equal"):
        store.datasets.freeze(dataset.dataset_id, build_dataset_rows(), BROKEN, actor="cara")
    assert store.datasets.get(dataset.dataset_id).status == "curating"


def test_illegal_moves_are_refused(store):
    dataset = add(store)
    number = dataset.dataset_id
    for status, why in (("ready", "freezing"), ("exported", "an export")):
        with pytest.raises(DatasetConflict, match=why):
            store.datasets.change(number, status=status, actor="cara")
    with pytest.raises(DatasetConflict, match="cannot become ready"):
        freeze(store, dataset)
    store.datasets.change(number, status="archived", actor="cara")
    for change in ({"status": "curating"}, {"query": DatasetQuery()}):
        with pytest.raises(DatasetConflict, match="archived"):
            store.datasets.change(number, actor="cara", **change)
    with pytest.raises(DatasetConflict, match="archived"):
        store.datasets.record_build(number, GOOD, actor="cara")


def test_an_export_is_recorded(store):
    dataset = build(store)
    freeze(store, dataset)
    for _ in range(2):
        exported = store.datasets.record_export(dataset.dataset_id, make_export(), actor="cara")
        assert (exported.status, exported.last_export) == ("exported", make_export())


def test_versions_are_found_by_their_sources(store):
    dataset = build(store)
    rows = build_dataset_rows(sources=['["comparison:c1"]', '["pair:7@2", "feedback:3"]'])
    version = freeze(store, dataset, rows)
    for source in ("comparison:c1", "feedback:3", "pair:7"):
        [named] = store.datasets.versions_of(source, "feedback:4")
        assert named.label == f"{dataset.name}@1"
        assert (named.content_hash, named.frozen_at) == (version.content_hash, version.frozen_at)
    assert len(store.datasets.versions_of("comparison:c1", "pair:7")) == 1
    assert store.datasets.versions_of("feedback:4") == []


def test_a_data_set_with_versions_keeps_its_name(store):
    dataset = build(store)
    renamed = store.datasets.change(dataset.dataset_id, name="other", actor="cara")
    freeze(store, renamed)
    store.datasets.change(dataset.dataset_id, name="other", description="d", actor="cara")
    with pytest.raises(DatasetConflict, match="has frozen versions, which models"):
        store.datasets.change(dataset.dataset_id, name="third", actor="cara")


def test_acts_are_audited_and_verified(store):
    dataset = build(store)
    freeze(store, dataset)
    store.datasets.change(dataset.dataset_id, status="archived", actor="cara")
    links = store.audit.after(0, limit=9)
    assert [(link.actor, link.action) for link in links] == [
        ("cara", "dataset.add"),
        ("cara", "dataset.build"),
        ("cara", "dataset_version.freeze"),
        ("cara", "dataset.ready"),
        ("cara", "dataset.archived"),
    ]
    assert store.audit.verify() == 5
    tamper(store, "UPDATE dataset_versions SET n_rows = 9")
    with pytest.raises(StoreError, match="version of a data set 1 version 1, which was changed"):
        store.audit.verify()


@pytest.mark.parametrize("table", ["dataset_versions", "dataset_rows", "dataset_sources"])
def test_frozen_rows_cannot_be_changed(store, table):
    freeze(store, build(store))
    from sqlalchemy import text

    with (
        pytest.raises(StoreError, match="append-only"),
        store.database.write_transaction() as connection,
    ):
        connection.execute(text(f"DELETE FROM {table}"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"kinds": ["rating"]}, [2]),
        ({"session_id": "s2"}, [3]),
        ({"feedback_ids": [1, 3, 9]}, [1, 3]),
        ({"since": "2026-01-02"}, [2, 3]),
        ({"until": "2026-01-01"}, [1]),
    ],
)
def test_a_query_selects_feedback(store, clock, query, expected):
    for values in ({"kind": "thumbs", "value": 1}, {"kind": "rating", "value": 4}):
        feedback = NewFeedback(completion="c", prompt="p", session_id="s1", **values)
        store.feedback.add(feedback, created_by="app")
        clock.tick(days=1)
    detailed = NewFeedback(kind="thumbs", value=0, completion="c", session_id="s2")
    store.feedback.add(detailed, created_by="app")
    entries = store.feedback.select(FeedbackQuery.model_validate(query))
    assert [entry.feedback_id for entry in entries] == expected
