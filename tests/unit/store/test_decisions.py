"""Which votes the retraining trigger counts as new: those that may teach, whoever else voted
meanwhile.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_pipeline.core.records import (
    GATE_SOURCE,
    AnnotatorKind,
    NewVote,
    TriggerDecision,
    TriggerEvidence,
    VoteDetails,
)
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON

MODEL = "demo.reward_model@1"


def fire(evidence: TriggerEvidence) -> TriggerDecision:
    events = (*evidence.held_events, *evidence.open_events)
    return TriggerDecision(
        action="fire",
        reasons=("test",),
        event_ids=tuple(e.event_id for e in events),
        change_seq=1,
        decided_at=evidence.now,
    )


@pytest.fixture
def n_new(store: Store, make_event: Callable[..., Any]) -> Callable[..., int]:
    """How many new votes the rule is told of when another event comes; holds unless told to
    fire.
    """
    n_events = 0

    def ask(*, fires: bool = False, up_to_seq: int | None = None) -> int:
        nonlocal n_events
        n_events += 1
        store.events.add([make_event(n_events)])
        evidences: list[TriggerEvidence] = []

        def rule(evidence: TriggerEvidence) -> TriggerDecision:
            evidences.append(evidence)
            return fire(evidence).model_copy(update={"action": "fire" if fires else "hold"})

        store.decisions.apply_rule(rule, now=NOON, champion=MODEL, up_to_seq=up_to_seq)
        return evidences[0].n_new_votes

    return ask


def by(
    store: Store,
    make_vote: Callable[..., NewVote],
    kind: AnnotatorKind,
    n: int,
    *,
    first: int = 0,
    **more: Any,
) -> None:
    for i in range(first, first + n):
        store.votes.cast(
            make_vote(
                f"c{i}",
                str(kind),
                annotator_kind=kind,
                origin="api",
                idempotency_key=f"{kind}/{i}",
                **more,
            )
        )


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(AnnotatorKind.HUMAN, 4), (AnnotatorKind.SIMULATED, 4), (AnnotatorKind.MACHINE, 0)],
    ids=str,
)
def test_machine_votes_are_not_new_votes(store, make_comparisons, make_vote, n_new, kind, counted):
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    by(store, make_vote, kind, 4)
    assert n_new() == counted


def test_votes_for_the_gate_are_not_new_votes(store, make_comparisons, make_vote, n_new):
    frame = make_comparisons(3)
    frame["source"] = [GATE_SOURCE, GATE_SOURCE, None]
    store.comparisons.publish(frame, published_at=NOON)
    by(store, make_vote, AnnotatorKind.HUMAN, 3)
    assert n_new() == 1


def test_skips_and_superseded_votes_are_not_new_votes(store, make_comparisons, make_vote, n_new):
    store.comparisons.publish(make_comparisons(6), published_at=NOON)
    store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("c1", choice="skip"))
    changed = store.votes.cast(make_vote("c2"))
    store.votes.cast(
        make_vote("c2", choice="b", supersedes=changed.vote_id, idempotency_key="changed")
    )
    undone = store.votes.cast(make_vote("c3"))
    back = {
        "choice": "skip",
        "supersedes": undone.vote_id,
        "details": VoteDetails(flags=("undone",)),
        "idempotency_key": "undone",
    }
    taken_back = store.votes.cast(make_vote("c3", **back))
    assert n_new() == 2
    store.votes.cast(
        make_vote("c3", choice="b", supersedes=taken_back.vote_id, idempotency_key="again")
    )
    assert n_new() == 3
    assert n_new(fires=True) == 3


def test_after_a_retraining_only_later_votes_are_new(store, make_comparisons, make_vote, n_new):
    store.comparisons.publish(make_comparisons(9), published_at=NOON)
    old = [store.votes.cast(make_vote(f"c{i}")) for i in range(3)]
    assert n_new(fires=True) == 3
    # What supersedes a vote of before the fire is new itself, and takes nothing from the new ones.
    store.votes.cast(
        make_vote("c0", choice="b", supersedes=old[0].vote_id, idempotency_key="changed")
    )
    store.votes.cast(
        make_vote("c1", choice="skip", supersedes=old[1].vote_id, idempotency_key="undone")
    )
    by(store, make_vote, AnnotatorKind.MACHINE, 4, first=4)
    store.votes.cast(make_vote("c3"))
    assert n_new() == 2


def test_replayed_day_counts_the_votes_known_then(store, make_comparisons, make_vote, n_new):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    first = store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("c1"))
    store.votes.cast(
        make_vote("c0", choice="skip", supersedes=first.vote_id, idempotency_key="undone")
    )
    assert [n_new(up_to_seq=seq) for seq in (0, 1, 2, 3)] == [0, 1, 2, 1]
