"""Sessions of the gate and acts of releases in the store, on either database."""

import pytest

from rlhf_pipeline.core.errors import NotFound, ReleaseConflict
from rlhf_pipeline.core.records import Promotion
from rlhf_pipeline.core.releases import ReleaseAct
from rlhf_pipeline.improve.gate_sessions import advance
from tests.unit.improve.test_gate_sessions import CHAMPION, PEOPLE, begin, vote_all
from tests.unit.store.conftest import NOON


def act(kind: str, **more: object) -> ReleaseAct:
    values = {"model_name": "demo.policy", "version": 2, "actor": "ann", "reason": "better"}
    return ReleaseAct(act=kind, acted_at=NOON, **values | more)


def promotion(version: int, previous: int | None) -> Promotion:
    return Promotion(
        model_name="demo.policy",
        version=version,
        previous_version=previous,
        data_seq=None,
        reason="better",
        actor="ann",
    )


def test_session_asks_batch_by_batch_and_ends_once(store, clock):
    begin(store)
    assert advance(store, CHAMPION, NOON).n_wanted == 20
    stale = store.gate_sessions.running()
    assert sum(vote_all(store, PEOPLE, 0.5).values()) == 20
    clock.tick(minutes=1)
    assert store.gate_sessions.count_active_annotators() == len(
        set(store.votes.log()["annotator_id"])
    )
    assert advance(store, CHAMPION, NOON).n_wanted == 40
    assert store.gate_sessions.close(stale, "void") is None  # another process changed it first
    running = store.gate_sessions.running()
    paused = store.gate_sessions.hold(running, "held")
    assert store.gate_sessions.running() == paused
    closed = store.gate_sessions.close(paused, "decided")
    assert (closed.state, closed.closed_at) == ("decided", clock.now())
    assert store.gate_sessions.running() is None
    assert store.gate_sessions.all() == [store.gate_sessions.latest()] == [closed]
    store.audit.verify()


def test_request_is_answered_once_and_stored_with_its_promotion(store, clock):
    store.promotions.record(promotion(1, None))
    request = store.release_acts.add(act("request", replaces=1, checklist=("read",)))
    approval = act("approve", actor="bob", request_id=request.act_id)
    with pytest.raises(ReleaseConflict):
        store.promotions.record(promotion(2, 7), approval)
    assert store.promotions.record(promotion(2, 1), approval)
    assert store.promotions.champion("demo.policy").request_id == request.act_id
    with pytest.raises(ReleaseConflict, match="version 2 is deployed now"):
        store.promotions.record(promotion(2, 1), approval)  # a third person, at once
    for again in (approval, act("reject", request_id=request.act_id)):
        with pytest.raises(ReleaseConflict):
            store.release_acts.add(again)
    assert [each.act for each in store.release_acts.all("demo.policy")] == ["request", "approve"]
    assert store.release_acts.request(request.act_id) == request
    with pytest.raises(NotFound):
        store.release_acts.request(99)
    store.audit.verify()
