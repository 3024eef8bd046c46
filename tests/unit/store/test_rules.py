"""Guidelines and rules: versions, edited by who read the newest."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf_pipeline.core.errors import NotFound, OutdatedEdit, StoreError
from rlhf_pipeline.core.records import AnnotationRules


def test_default_rules_exist(store):
    assert store.rules.latest() == (0, AnnotationRules())
    assert store.rules.history() == []


def test_rules_are_versioned_and_unchanged(store):
    rules = AnnotationRules(
        overlap=3, dimensions=("kind", "true"), max_votes_per_day=100, seed=2**48
    )
    assert store.rules.put(rules, after=0, actor="cura") == 1
    assert store.rules.put(rules.model_copy(update={"overlap": 4}), after=1, actor="cura") == 2
    assert store.rules.latest()[0] == 2
    assert [(version, rules.overlap, by) for version, rules, _, by in store.rules.history()] == [
        (2, 4, "cura"),
        (1, 3, "cura"),
    ]
    assert store.rules.history()[1][1] == rules
    with pytest.raises(OutdatedEdit, match="at version 2, but the edit is based on version 1"):
        store.rules.put(rules, after=1, actor="cura")


def test_concurrent_edits_of_a_version_keep_one(store):
    def put(i: int) -> bool:
        try:
            store.guidelines.add(f"text {i}", after=0, actor="cura")
        except OutdatedEdit:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(8))) == 1
    assert store.guidelines.latest().version == 1


def test_guidelines_are_read_by_version(store):
    assert store.guidelines.latest() is None
    store.guidelines.add("One — ü", after=0, actor="cura")
    store.guidelines.add("Two", after=1, actor="cura")
    assert [guidelines.text for guidelines in store.guidelines.all()] == ["Two", "One — ü"]
    assert store.guidelines.get(1).text == "One — ü"
    with pytest.raises(NotFound, match="no version 3"):
        store.guidelines.get(3)


def test_guidelines_cannot_be_changed(store):
    store.guidelines.add("One", after=0, actor="cura")
    store.rules.put(AnnotationRules(), after=0, actor="cura")
    for table in ("guidelines", "annotation_rules"):
        for statement in (f"UPDATE {table} SET created_by = 'x'", f"DELETE FROM {table}"):
            with (
                pytest.raises(StoreError, match="append-only"),
                store.database.write_transaction() as connection,
            ):
                connection.exec_driver_sql(statement)
