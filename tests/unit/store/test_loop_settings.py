"""Versions of the loop settings."""

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.improve.loop_settings import LoopSettings, record_version
from rlhf_pipeline.store import Store


def test_each_change_is_one_version_with_an_audit_link(store: Store) -> None:
    assert record_version(LoopSettings(), store).version == 0
    stricter = LoopSettings.parse({"gate": {"min_win_rate": 0.6}})
    for _ in range(2):
        version = record_version(stricter, store)
    assert (version.version, version.changes) == (1, ("gate.min_win_rate: 0.5 (default) → 0.6",))
    assert record_version(LoopSettings(), store).version == 2
    assert [stored.version for stored in store.loop_settings.all()] == [2, 1]
    assert store.loop_settings.all()[1].given == {"gate": {"min_win_rate": 0.6}}
    links, _ = store.audit.page(AuditFilter(action="loop_settings.*"))
    assert [link.object_id for link in links] == ["2", "1"]
    assert store.audit.verify() == 2
