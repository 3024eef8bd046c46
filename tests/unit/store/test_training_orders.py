"""Orders of training jobs: one job for one key or one open order, and its cancellation."""

import pytest

from rlhf_pipeline.core.errors import IdempotencyConflict
from rlhf_pipeline.core.records import (
    TrainingOrder,
)
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON


def place(store: Store, beta: float = 0.1, key: str | None = None) -> tuple[int, bool]:
    """The number of the job, and whether the order made it."""
    order = TrainingOrder(stages={"candidate_model": {"strategy": "dpo", "beta": beta}}, key=key)
    decision, is_new = store.training_jobs.order(order, reason="try", actor="ada", now=NOON)
    return decision.stored_id, is_new


def test_same_order_is_one_job_while_it_is_open(store: Store) -> None:
    assert place(store) == (1, True)
    assert place(store) == (1, False)
    assert place(store, beta=0.3) == (2, True)
    store.training_jobs.mark_submitted(1, 1, "r")
    assert place(store) == (1, False)
    store.training_jobs.mark_finished(1, succeeded=True)
    assert place(store) == (3, True)
    order = store.decisions.get(1).order
    assert order is not None
    assert order.strategy == "dpo"


def test_idempotency_key_names_one_job_forever(store: Store) -> None:
    assert place(store, key="sweep-1") == (1, True)
    assert place(store, key="sweep-2") == (2, True)
    store.training_jobs.mark_finished(1, succeeded=False, error="no votes")
    assert place(store, key="sweep-1") == (1, False)
    with pytest.raises(IdempotencyConflict, match=r"'sweep-1' is that of job 1.*another key"):
        place(store, beta=0.3, key="sweep-1")


def test_cancelled_job_starts_no_run_and_names_the_actor(store: Store) -> None:
    place(store)
    assert store.training_jobs.find_cancellation(1) is None
    decision = store.training_jobs.cancel(1, reason="wrong set", actor="bob", now=NOON)
    assert (decision.action, decision.answers, decision.actor) == ("hold", 1, "bob")
    assert decision.reasons == ("by hand: cancels job 1: wrong set",)
    assert store.training_jobs.find_cancellation(1) == decision
    assert store.training_jobs.cancel(1, reason="again", actor="bob", now=NOON) == decision
    assert store.training_jobs.pending() == []
    assert store.decisions.get(1).error == "cancelled by bob: wrong set"
    assert place(store) == (3, True), "the same order later is a new job"
    assert store.audit.verify() > 0


def test_open_order_is_counted_separately_except_in_replays(store: Store) -> None:
    place(store)
    store.decisions.fire_by_hand("new guideline", actor="ada", now=NOON)

    def count(up_to_seq: int | None = None) -> tuple[int, int]:
        evidence = store.decisions.read_evidence(now=NOON, champion=None, up_to_seq=up_to_seq)
        return evidence.n_unfinished, evidence.n_ordered

    assert count() == (1, 1)
    assert count(up_to_seq=0) == (1, 0)
