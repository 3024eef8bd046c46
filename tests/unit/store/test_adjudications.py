"""Decisions of experts stand until another or an undo; none is lost."""

import pytest

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import NotFound, UnknownComparison
from tests.unit.store.conftest import NOON


def test_the_newest_decision_stands_until_it_is_undone(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    store.votes.cast(make_vote("c0"))
    log = store.adjudications
    first = log.add("c0", "a", reason="the source says so", actor="me")
    store.votes.cast(make_vote("c1"))
    log.add("c0", "b", reason="the newer one does not", actor="you")
    other = log.add("c1", "tie", reason="same text", actor="me")
    assert {
        comparison_id: adjudication.choice
        for comparison_id, adjudication in log.standing(["c0", "c1", "c2"]).items()
    } == {
        "c0": "b",
        "c1": "tie",
    }
    assert log.standing(["c0", "c1"], up_to_seq=1) == {"c0": first}
    assert log.standing(["c0"], up_to_seq=0) == {}
    assert [adjudication.comparison_id for adjudication in log.page()] == ["c1", "c0"]
    assert [
        adjudication.comparison_id for adjudication in log.page(before_id=other.adjudication_id)
    ] == ["c0"]
    log.undo("c0", reason="", actor="me")
    assert list(log.standing(["c0", "c1"])) == ["c1"]
    assert log.page() == [other]
    links, _ = store.audit.page(AuditFilter(limit=9))
    acts = [(link.action, link.object_id) for link in links if "consensus" in link.action]
    assert acts == [
        ("consensus.undo", "c0"),
        ("consensus.decide", "c1"),
        ("consensus.decide", "c0"),
        ("consensus.decide", "c0"),
    ]


def test_unknown_comparison_is_not_decided_or_undone(store, make_comparisons):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    with pytest.raises(UnknownComparison, match="'c9'"):
        store.adjudications.add("c9", "a", reason="x", actor="me")
    with pytest.raises(NotFound, match="nothing to undo"):
        store.adjudications.undo("c0", reason="", actor="me")
