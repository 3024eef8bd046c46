"""The work ledger on both databases: who may claim what, what a call costs, and that nothing is
lost or counted twice.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.protocols import (
    Attempt,
    Budget,
    Claim,
    Lane,
    LedgerTransaction,
    Spending,
    WorkItem,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.schema import (
    generation_attempts,
    generation_runs,
    generation_spending,
)
from tests.unit.store.conftest import NOON, SetClock

LANE: Lane = ("api.example.org", "m")
OTHER: Lane = ("api.example.com", "m")


def work(
    n: int, *, lane: Lane = LANE, reserve: int = 10, keys: Sequence[str] | None = None
) -> list[WorkItem]:
    return [
        WorkItem(
            item_no=i,
            position=i,
            prompt_id=f"p{i}",
            provider=lane[0],
            model=lane[1],
            sample_index=0,
            params="{}",
            cache_key=keys[i] if keys else f"key {i}",
            reserve=reserve,
            is_metered=True,
        )
        for i in range(n)
    ]


def start(store: Store, items: Sequence[WorkItem], run_id: str = "run") -> None:
    store.generation.start(run_id, items, asset="completions", record="{}")


def turn(
    store: Store,
    n_wanted: int | Mapping[Lane, int] = 0,
    attempts: Sequence[Attempt] = (),
    *,
    run_id: str = "run",
    owner: str = "me",
    budget: Budget | None = None,
    dead: Sequence[str] = (),
) -> LedgerTransaction:
    lanes = {LANE: n_wanted} if isinstance(n_wanted, int) else n_wanted
    return store.generation.settle_and_claim(
        run_id, owner, attempts, lanes, budget or Budget(), is_dead=lambda who: who in dead
    )


def attempt(item_no: int, becomes: str = "succeeded", **more: Any) -> Attempt:
    """A call that cost 4 of the 10 reserved, for 3 + 5 tokens."""
    outcome = {"succeeded": "succeeded", "failed": "terminal", "open": "retryable"}[becomes]
    values: dict[str, Any] = {
        "item_no": item_no,
        "provider": LANE[0],
        "model": LANE[1],
        "cache_key": f"key {item_no}",
        "started_at": NOON,
        "latency_ms": 200.0,
        "outcome": outcome,
        "kind": "succeeded" if becomes == "succeeded" else "server_error",
        "becomes": becomes,
        "is_fault": becomes != "succeeded",
        "billing": "metered" if becomes == "succeeded" else "none",
    }
    if becomes == "succeeded":
        values |= {"n_prompt_tokens": 3, "n_tokens": 5, "cost": 4, "result": f"text {item_no}"}
    return Attempt(**(values | more))


def numbers(claims: Sequence[Claim]) -> list[int]:
    return [claim.item_no for claim in claims]


def states(store: Store, run_id: str = "run") -> dict[str, int]:
    counts: dict[str, int] = {}
    for settled in store.generation.item_states(run_id):
        counts[settled.state] = counts.get(settled.state, 0) + 1
    return counts


def rows(store: Store, table: Any) -> list[Any]:
    with store.database.read_transaction() as connection:
        return list(connection.execute(select(table)))


def test_an_item_is_claimed_called_for_and_settled(store: Store, clock: SetClock) -> None:
    start(store, work(3))
    assert numbers(turn(store, 2).claimed[LANE]) == [0, 1]
    last = turn(store, 2, [attempt(0), attempt(1, "failed", error="no")])
    assert numbers(last.claimed[LANE]) == [2]
    assert (last.n_open, last.n_leased) == (0, 0)
    turn(store, 0, [attempt(2)])
    rows = [(s.state, s.kind, s.error, s.n_attempts) for s in store.generation.item_states("run")]
    assert rows == [
        ("succeeded", None, None, 1),
        ("failed", "server_error", "no", 1),
        ("succeeded", None, None, 1),
    ]
    assert store.generation.results(["key 0", "key 1", "key 2"]) == {
        "key 0": "text 0",
        "key 2": "text 2",
    }
    assert store.generation.spending("run") == {
        LANE: Spending(n_calls=3, n_prompt_tokens=6, n_tokens=10, cost=8)
    }


def test_retryable_item_is_claimed_when_due(store: Store, clock: SetClock) -> None:
    start(store, work(1))
    turn(store, 1)
    waiting = turn(store, 1, [attempt(0, "open", not_before=NOON + timedelta(seconds=5))])
    assert (waiting.claimed[LANE], waiting.n_open, waiting.due_s) == ([], 1, 5.0)
    clock.tick(seconds=5)
    assert turn(store, 1).claimed[LANE] == [Claim(0, 1, 1)]


def test_wait_is_capped_at_the_longest_pause(store: Store, clock: SetClock) -> None:
    start(store, work(2))
    turn(store, 2)
    waits = [attempt(i, "open", not_before=NOON + timedelta(days=7 * (i + 1))) for i in (0, 1)]
    assert numbers(turn(store, 2, waits).claimed[LANE]) == [1]


def test_expired_leases_are_reclaimed_as_perhaps_billed(store: Store, clock: SetClock) -> None:
    start(store, work(2))
    turn(store, 2, owner="other")
    clock.tick(seconds=60)
    assert turn(store, 2).claimed[LANE] == []
    clock.tick(seconds=61)
    assert turn(store, 2).claimed[LANE] == [Claim(0, 1, 0), Claim(1, 1, 0)]
    assert store.generation.spending("run") == {LANE: Spending(n_unknown=2, cost_unknown=20)}


def test_turns_renew_leases(store: Store, clock: SetClock) -> None:
    start(store, work(1))
    turn(store, 1, owner="other")
    for _ in range(5):
        clock.tick(seconds=60)
        turn(store, 0, owner="other")
    assert turn(store, 1).claimed[LANE] == []


def test_call_after_its_lease_is_recorded_with_its_text(store: Store, clock: SetClock) -> None:
    start(store, work(2))
    turn(store, 2, owner="slow")
    clock.tick(seconds=200)
    turn(store, 2)  # lost, and mine now
    turn(store, 0, [attempt(0), attempt(1, "failed", error="late")], owner="slow")
    assert [s.state for s in store.generation.item_states("run")] == ["succeeded", "leased"], (
        "a late failure is nobody's verdict"
    )
    turn(store, 0, [attempt(0), attempt(1)])
    calls = sorted(
        (row.item_no, row.attempt_no, row.outcome) for row in rows(store, generation_attempts)
    )
    assert calls == [
        (0, 1, "lost"),
        (0, 2, "succeeded"),
        (0, 3, "succeeded"),
        (1, 1, "lost"),
        (1, 2, "terminal"),
        (1, 3, "succeeded"),
    ]
    assert states(store) == {"succeeded": 2}


def test_many_workers_never_claim_the_same_item(store: Store) -> None:
    start(store, work(200))

    def take(owner: int) -> list[int]:
        mine: list[int] = []
        for _ in range(10):
            mine += numbers(turn(store, 5, owner=f"worker {owner}").claimed[LANE])
        return mine

    with ThreadPoolExecutor(4) as pool:
        items = [item for mine in pool.map(take, range(4)) for item in mine]
    assert sorted(items) == list(range(200))


def test_equal_keys_are_called_once_across_runs(store: Store, clock: SetClock) -> None:
    start(store, work(3, keys=["same", "same", "another"]))
    start(store, work(1, keys=["same"]), "second")
    assert numbers(turn(store, 3).claimed[LANE]) == [0, 2]
    assert turn(store, 3, run_id="second").claimed[LANE] == []
    outcome = turn(store, 3, [attempt(0, cache_key="same"), attempt(2, cache_key="another")])
    assert (outcome.claimed[LANE], outcome.from_cache, outcome.n_open) == ([], [1], 0)
    assert turn(store, 3, run_id="second").from_cache == [0]
    assert store.generation.spending("run")[LANE].n_calls == 2
    assert store.generation.spending("second") == {}


def test_cached_items_are_settled_at_the_start(store: Store, clock: SetClock) -> None:
    store.completions_cache.put_many({"key 1": "known"})
    start(store, work(3))
    assert [(s.state, s.is_cached) for s in store.generation.item_states("run")] == [
        ("open", False),
        ("succeeded", True),
        ("open", False),
    ]


def test_64_workers_never_exceed_a_budget(store: Store) -> None:
    start(store, work(300))

    def call(owner: int) -> int:
        n_calls, attempts = 0, []
        while True:
            outcome = turn(store, 2, attempts, owner=f"w{owner}", budget=Budget(run=205))
            n_calls += len(outcome.claimed[LANE])
            if not outcome.claimed[LANE]:
                return n_calls
            attempts = [attempt(claim.item_no, cost=7) for claim in outcome.claimed[LANE]]

    with ThreadPoolExecutor(64) as pool:
        n_calls = sum(pool.map(call, range(64)))
    while more := turn(store, 1, budget=Budget(run=205)).claimed[LANE]:  # what came back unused
        turn(store, 0, [attempt(claim.item_no, cost=7) for claim in more])
        n_calls += len(more)
    spent = store.generation.spending("run")[LANE]
    assert spent.cost == 7 * n_calls <= 205
    assert spent.cost + 10 > 205, "and not less than it bears"


@pytest.mark.parametrize(
    ("budget", "fits"),
    [
        (Budget(run=25), 2),
        (Budget(day=25), 1),  # the other run spent 4 of it today, and holds 10
        (Budget(provider=25), 1),
        (Budget(run=5), 0),
        (Budget(run=0), 0),
        (Budget(), 5),
    ],
    ids=str,
)
def test_budget_counts_spent_and_running_calls(
    store: Store, clock: SetClock, budget: Budget, fits: int
) -> None:
    start(store, work(2, keys=["x", "y"]), "before")
    turn(store, 1, run_id="before")
    turn(store, 1, [attempt(0, cache_key="x")], run_id="before")
    start(store, work(5))
    assert len(turn(store, 5, budget=budget).claimed[LANE]) == fits


def test_exhausted_budget_is_reported_after_running_calls(store: Store, clock: SetClock) -> None:
    start(store, work(3))
    assert numbers(turn(store, 3, budget=Budget(run=15)).claimed[LANE]) == [0]
    assert turn(store, 3, budget=Budget(run=15)).over_budget == {}
    over = turn(store, 3, [attempt(0)], budget=Budget(run=13)).over_budget
    assert "the budget of this run" in over[LANE].why
    assert sorted(
        store.generation.fail_open("run", LANE, "budget", over[LANE].why, above=over[LANE].left)
    ) == [1, 2]
    assert states(store) == {"succeeded": 1, "failed": 2}


def test_daily_budget_excludes_yesterday(store: Store, clock: SetClock) -> None:
    start(store, work(3))
    turn(store, 1)
    turn(store, 0, [attempt(0)])
    assert turn(store, 3, budget=Budget(day=12)).claimed[LANE] == []
    clock.tick(seconds=86_400)
    assert numbers(turn(store, 3, budget=Budget(day=12)).claimed[LANE]) == [1]
    turn(store, 0, [attempt(1)])
    assert [key for key, _ in store.generation.sum_spending("day")] == [
        ("2026-01-01",),
        ("2026-01-02",),
    ]


def test_calls_with_unknown_bill_count_at_worst(store: Store, clock: SetClock) -> None:
    start(store, work(2))
    turn(store, 1)
    turn(store, 0, [attempt(0, "open", billing="unknown", cost=10, kind="dropped")])
    assert store.generation.spending("run") == {
        LANE: Spending(n_calls=1, n_unknown=1, cost_unknown=10)
    }
    assert turn(store, 2, budget=Budget(run=19)).over_budget[LANE]


def test_sums_equal_the_recorded_calls(store: Store, clock: SetClock) -> None:
    start(store, work(4))
    turn(store, 4)
    turn(
        store,
        0,
        [
            attempt(0),
            attempt(1),
            attempt(2, "open", billing="unknown", cost=10),
            attempt(3, "failed"),
        ],
    )
    clock.tick(seconds=90_000)
    turn(store, 1)
    turn(store, 0, [attempt(2)])
    calls = [row for row in rows(store, generation_attempts) if row.outcome != "lost"]
    summed = [row for row in rows(store, generation_spending)]
    assert len(summed) == 2
    for column in ("n_prompt_tokens", "n_tokens"):
        assert sum(getattr(row, column) for row in summed) == sum(
            getattr(row, column) for row in calls
        )
    assert sum(row.n_calls for row in summed) == len(calls) == 5
    assert sum(row.cost for row in summed) == sum(
        row.cost for row in calls if row.billing != "unknown"
    )
    assert sum(row.cost_unknown for row in summed) == sum(
        row.cost for row in calls if row.billing == "unknown"
    )
    assert store.generation.sum_spending("asset") == [
        (("completions",), Spending(5, 1, 9, 15, 12, 10))
    ]
    assert [call["attempt_no"] for call in store.generation.read_calls("run")] == [1, 1, 1, 2, 1]


def test_interrupted_run_resumes_and_finished_run_retries(store: Store, clock: SetClock) -> None:
    start(store, work(3))
    turn(store, 2)
    turn(store, 0, [attempt(0), attempt(1, "failed")])
    start(store, work(3))
    assert states(store) == {"succeeded": 1, "failed": 1, "open": 1}, (
        "a failure stands while the run goes on"
    )
    turn(store, 1)
    turn(store, 0, [attempt(2)])
    store.generation.end("run")
    [listed] = store.generation.list_runs()
    assert (listed.states, listed.ended_at, listed.spent.n_calls) == (
        {"succeeded": 2, "failed": 1},
        NOON,
        3,
    )
    start(store, work(3))
    assert turn(store, 3).claimed[LANE] == [Claim(1, 1, 0, n_before=1)]


def test_killed_start_records_the_remaining_items(
    store: Store, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = GenerationLedger._insert_items

    def dies(self: GenerationLedger, run_id: str, batch: Sequence[WorkItem]) -> None:
        noted(self, run_id, batch[:400])
        raise KeyboardInterrupt

    monkeypatch.setattr(GenerationLedger, "_insert_items", dies)
    with pytest.raises(KeyboardInterrupt):
        start(store, work(700))
    monkeypatch.undo()
    start(store, work(700))
    assert states(store) == {"open": 700}
    assert len(rows(store, generation_runs)) == 1


def test_lanes_are_claimed_separately(store: Store, clock: SetClock) -> None:
    items = [
        *work(2),
        *(
            WorkItem(
                **{
                    **{n: getattr(i, n) for n in i.__slots__},
                    "item_no": i.item_no + 2,
                    "cache_key": f"b{i.item_no}",
                }
            )
            for i in work(2, lane=OTHER)
        ),
    ]
    start(store, items)
    outcome = turn(store, {LANE: 0, OTHER: 5})
    assert numbers(outcome.claimed[OTHER]) == [2, 3]
    assert (outcome.n_open, outcome.n_leased) == (2, 0)
    assert turn(store, {OTHER: 5}).n_open == 0, "of the lanes that were asked about"


def test_failed_turn_is_rolled_back(store: Store, clock: SetClock) -> None:
    start(store, work(2))
    turn(store, 2)
    with pytest.raises(StoreError):
        turn(store, 0, [attempt(0), attempt(1, error="\ud800")])
    assert states(store) == {"leased": 2}
    assert rows(store, generation_attempts) == []
    assert store.generation.results(["key 0"]) == {}


def test_prune_removes_least_used_and_keeps_needed_entries(store: Store, clock: SetClock) -> None:
    cache = store.completions_cache
    cache.put_many({"old": "x" * 100, "key 0": "y" * 100})
    clock.tick(seconds=86_400)
    cache.put_many({"new": "z" * 100})
    start(store, work(2))  # hits key 0, and waits for it
    assert cache.prune(unused_since=NOON + timedelta(hours=1)) == 1
    later = clock.now() + timedelta(hours=1)
    assert cache.prune(unused_since=later) == 1, "the one that the run was answered by stays"
    store.generation.end("run")
    assert cache.prune(unused_since=later) == 1


def test_unaffordable_item_does_not_block_later_ones(store: Store, clock: SetClock) -> None:
    small, big = work(6), work(6, reserve=1_000)
    start(store, [big[i] if i in (0, 1, 3) else small[i] for i in range(6)])
    outcome = turn(store, 2, budget=Budget(run=50))
    assert numbers(outcome.claimed[LANE]) == [2, 4]
    assert outcome.over_budget == {}, "as many as were wanted"
    outcome = turn(store, 2, budget=Budget(run=50))
    assert numbers(outcome.claimed[LANE]) == [5]
    over = outcome.over_budget[LANE]
    assert over.left == 50, "they will never fit, whatever becomes of those under way"
    assert sorted(store.generation.fail_open("run", LANE, "budget", over.why, above=over.left)) == [
        0,
        1,
        3,
    ]
