"""Hand-made pairs: an edit is a revision, and a rejected pair is kept."""

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.api_types.filters import PairFilter
from rlhf_pipeline.core.curation import DatasetQuality, DatasetQuery, PairTexts
from rlhf_pipeline.core.errors import DatasetConflict, NotFound, StoreError
from tests.dataset_rows import build_dataset_rows
from tests.unit.store.conftest import tamper

TEXTS = PairTexts(prompt="p — ü", chosen="c", rejected="r", strength=0.5, context=("d",), notes="n")
GOOD = DatasetQuality(score=1, parts=(), problems=(), n_rows=2)


@pytest.fixture
def dataset_id(store):
    return store.datasets.add("set", "preference", DatasetQuery(), "", actor="cara").dataset_id


def add(store, dataset_id, n=1):
    return store.curated_pairs.add(dataset_id, [(TEXTS, ())] * n, actor="cara")


def test_a_pair_is_read_back_as_it_was_added(store, dataset_id):
    pair = store.curated_pairs.add(dataset_id, [(TEXTS, (5, 6))], actor="cara")[0]
    assert pair.model_dump(include=set(PairTexts.model_fields)) == TEXTS.model_dump()
    assert (pair.pair_id, pair.revision, pair.status, pair.feedback_ids) == (
        1,
        1,
        "accepted",
        (5, 6),
    )
    assert store.curated_pairs.get(1) == pair


def test_an_edit_is_a_revision(store, dataset_id):
    first = add(store, dataset_id)[0]
    second = store.curated_pairs.revise(1, {"chosen": "better"}, actor="dan")
    assert (second.revision, second.chosen, second.rejected) == (2, "better", "r")
    assert (first.edited_by, second.edited_by) == ("cara", "dan")
    assert store.curated_pairs.history(1) == [first, second]
    assert store.curated_pairs.get(1) == second


@pytest.mark.parametrize("change", [{"chosen": "r"}, {"rejected": " "}, {"prompt": ""}])
def test_an_edit_to_equal_or_blank_sides_is_refused(store, dataset_id, change):
    add(store, dataset_id)
    with pytest.raises(ValidationError):
        store.curated_pairs.revise(1, change, actor="cara")
    assert store.curated_pairs.get(1).revision == 1


def test_a_rejected_pair_is_kept_and_can_be_accepted_again(store, dataset_id):
    add(store, dataset_id, 2)
    rejected = store.curated_pairs.revise(1, {}, actor="cara", status="rejected")
    assert (rejected.status, rejected.chosen) == ("rejected", "c")
    assert [each.pair_id for each in store.curated_pairs.of_dataset(dataset_id)] == [2]
    store.curated_pairs.revise(1, {}, actor="cara")
    assert [each.pair_id for each in store.curated_pairs.of_dataset(dataset_id)] == [1, 2]


def test_a_change_of_nothing_is_no_revision(store, dataset_id):
    first = add(store, dataset_id)[0]
    assert store.curated_pairs.revise(1, {"chosen": "c"}, actor="dan") == first
    rejected = store.curated_pairs.revise(1, {}, actor="cara", status="rejected")
    assert store.curated_pairs.revise(1, {}, actor="dan", status="rejected") == rejected
    assert len(store.curated_pairs.history(1)) == 2


def test_pairs_are_listed_newest_first_in_their_latest_revision(store, dataset_id):
    add(store, dataset_id, 4)
    store.curated_pairs.revise(2, {"notes": "new"}, actor="cara")
    store.curated_pairs.revise(3, {}, actor="cara", status="rejected")
    for only, expected in (
        ({}, [4, 3, 2, 1]),
        ({"limit": 2}, [4, 3]),
        ({"status": "accepted"}, [4, 2, 1]),
        ({"status": "rejected"}, [3]),
        ({"dataset_id": dataset_id + 1}, []),
    ):
        page = store.curated_pairs.page(PairFilter(**only))
        assert [pair.pair_id for pair in page] == expected, only
    (second, _) = store.curated_pairs.page(PairFilter(), before_id=3)
    assert (second.revision, second.notes) == (2, "new")


def test_all_pairs_of_a_bulk_are_stored_or_none(store, dataset_id):
    with pytest.raises(AttributeError):
        store.curated_pairs.add(dataset_id, [(TEXTS, ()), (None, ())], actor="cara")
    assert store.curated_pairs.page(PairFilter()) == []
    assert [pair.pair_id for pair in add(store, dataset_id, 3)] == [1, 2, 3]


def test_a_pair_opens_its_frozen_set_and_the_version_keeps_its_rows(store, dataset_id):
    store.datasets.record_build(dataset_id, GOOD, actor="cara")
    version = store.datasets.freeze(dataset_id, build_dataset_rows(), GOOD, actor="cara")
    add(store, dataset_id)
    assert store.datasets.get(dataset_id).status == "curating"
    assert store.datasets.rows(version.content_hash).equals(build_dataset_rows())


def test_pairs_need_a_data_set_that_is_not_archived(store, dataset_id):
    add(store, dataset_id)
    with pytest.raises(NotFound, match="data set 9"):
        add(store, 9)
    with pytest.raises(NotFound, match="preference pair 9"):
        store.curated_pairs.revise(9, {}, actor="cara")
    store.datasets.change(dataset_id, status="archived", actor="cara")
    with pytest.raises(DatasetConflict, match="archived"):
        add(store, dataset_id)
    with pytest.raises(DatasetConflict, match="archived"):
        store.curated_pairs.revise(1, {}, actor="cara")


def test_each_revision_is_audited_and_verified(store, dataset_id):
    add(store, dataset_id, 2)
    store.curated_pairs.revise(1, {"chosen": "x"}, actor="cara")
    store.curated_pairs.revise(2, {}, actor="cara", status="rejected")
    links = store.audit.after(1, limit=9)
    assert [(link.action, link.object_id) for link in links] == [
        ("pair.add", "1 revision 1"),
        ("pair.add", "2 revision 1"),
        ("pair.revise", "1 revision 2"),
        ("pair.reject", "2 revision 2"),
    ]
    assert store.audit.verify() == 5
    tamper(store, "UPDATE pair_revisions SET status = 'accepted' WHERE revision = 2")
    with pytest.raises(StoreError, match="preference pair 2 revision 2, which was changed"):
        store.audit.verify()
