"""The null ledger: work noted in memory alone, for one process. Implements protocols.WorkLedger;
knows no database.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rlhf_pipeline.protocols import (
    RENEW_S,
    WRITE_AGAIN_S,
    Attempt,
    Budget,
    BudgetShortfall,
    Claim,
    CompletionCache,
    ItemState,
    Lane,
    LedgerSettlement,
    LedgerTransaction,
    Spending,
    WorkItem,
)


class MemoryCache:
    """A CompletionCache of one process."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def get_many(self, keys: Sequence[str]) -> Mapping[str, str]:
        return {key: self._entries[key] for key in keys if key in self._entries}

    def put_many(self, entries: Mapping[str, str]) -> None:
        self._entries.update(entries)


@dataclass
class _Row:
    item: WorkItem
    state: ItemState = "open"
    kind: str | None = None
    error: str | None = None
    n_attempts: int = 0
    n_faults: int = 0
    is_cached: bool = False
    not_before: datetime | None = None


class MemoryLedger:
    """One run at a time; what a killed process had done is lost, but for what its cache kept."""

    def __init__(
        self,
        cache: CompletionCache | None = None,
        *,
        write_again_s: tuple[float, ...] = WRITE_AGAIN_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self.write_again_s = write_again_s
        self.renew_s = renew_s
        self._cache = cache or MemoryCache()
        self._rows: dict[int, _Row] = {}
        self._open: dict[Lane, deque[_Row]] = {}
        self._leased: dict[int, _Row] = {}
        self._spent: dict[Lane, Spending] = {}
        self._lock = threading.Lock()

    def start(
        self,
        run_id: str,
        items: Sequence[WorkItem],
        *,
        asset: str,
        record: str,
        origin: str | None = None,
    ) -> None:
        have = self._cache.get_many([item.cache_key for item in items])
        self._rows = {item.item_no: _Row(item) for item in items}
        self._open, self._leased = defaultdict(deque), {}
        for row in sorted(self._rows.values(), key=lambda row: row.item.position):
            if row.item.cache_key in have:
                row.state, row.is_cached = "succeeded", True
            else:
                self._open[_lane(row)].append(row)

    def settle_and_claim(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        wanted: Mapping[Lane, int],
        budget: Budget,
        *,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        now = datetime.fromtimestamp(time.time(), UTC)
        with self._lock:
            self._cache.put_many({a.cache_key: a.result for a in attempts if a.result is not None})
            for attempt in attempts:
                self._settle(attempt)
            from_cache: list[int] = []
            over: dict[Lane, BudgetShortfall] = {}
            claimed = {
                lane: self._claim(lane, n, budget, now, from_cache, over)
                for lane, n in wanted.items()
            }
            if not wanted or (
                any(wanted.values()) and all(len(claimed[lane]) >= n for lane, n in wanted.items())
            ):
                return LedgerTransaction(claimed, from_cache, over)
            left = [row for lane in wanted for row in self._open[lane]]
            due = min((row.not_before for row in left if row.not_before), default=None)
            due_s = None if due is None else max(0.0, (due - now).total_seconds())
            return LedgerTransaction(
                claimed, from_cache, over, n_open=len(left), n_leased=0, due_s=due_s
            )

    def _settle(self, a: Attempt) -> None:
        row = self._leased.pop(a.item_no)
        row.state, row.not_before = a.becomes, a.not_before
        row.kind, row.error = (None, None) if a.becomes == "succeeded" else (a.kind, a.error)
        row.n_attempts += 1
        row.n_faults += a.is_fault
        if row.state == "open":
            self._open[_lane(row)].append(row)
        spent = self._spent.get(_lane(row), Spending())
        is_unknown = a.billing == "unknown"
        self._spent[_lane(row)] = replace(
            spent,
            n_calls=spent.n_calls + 1,
            n_unknown=spent.n_unknown + is_unknown,
            n_prompt_tokens=spent.n_prompt_tokens + a.n_prompt_tokens,
            n_tokens=spent.n_tokens + a.n_tokens,
            cost=spent.cost + (0 if is_unknown else a.cost),
            cost_unknown=spent.cost_unknown + (a.cost if is_unknown else 0),
        )

    def _claim(
        self,
        lane: Lane,
        n: int,
        budget: Budget,
        now: datetime,
        from_cache: list[int],
        over: dict[Lane, BudgetShortfall],
    ) -> list[Claim]:
        waiting, aside, taken = self._open[lane], list[_Row](), list[Claim]()
        under_way = {row.item.cache_key for row in self._leased.values()}
        left, at_best = self._remaining_budget(budget, lane) if n else (None, None)
        while waiting and len(taken) < n:
            row = waiting.popleft()
            if row.item.cache_key in under_way or (
                row.not_before is not None and row.not_before > now
            ):
                aside.append(row)
                continue
            if self._cache.get_many([row.item.cache_key]):
                row.state, row.is_cached = "succeeded", True
                from_cache.append(row.item.item_no)
                continue
            if left is not None and row.item.reserve > left:
                aside.append(row)
                if at_best is not None and row.item.reserve > at_best.left:
                    over[lane] = at_best
                continue
            left = None if left is None else left - row.item.reserve
            row.state, row.not_before = "leased", None
            self._leased[row.item.item_no] = row
            under_way.add(row.item.cache_key)
            taken.append(Claim(row.item.item_no, row.n_attempts, row.n_faults))
        waiting.extendleft(reversed(aside))
        return taken

    def _remaining_budget(
        self, budget: Budget, lane: Lane
    ) -> tuple[int | None, BudgetShortfall | None]:
        """The least that any budget leaves beside all that is under way, and what it would if that
        came to nothing.
        """
        paid = {key: spent.cost + spent.cost_unknown for key, spent in self._spent.items()}
        held = Counter[Lane]()
        for row in self._leased.values():
            held[_lane(row)] += row.item.reserve
        scopes = (
            ("this run", budget.run, lambda key: True),
            ("this day", budget.day, lambda key: True),
            (f"provider {lane[0]}", budget.provider, lambda key: key[0] == lane[0]),
        )
        rooms = []
        for name, most, counts in scopes:
            if most is not None:
                left = most - sum(cost for key, cost in paid.items() if counts(key))
                why = (
                    f"the budget of {name} ({most / 1e9:.6g}) has {max(0, left) / 1e9:.6g} "
                    "left; a call for this may cost more"
                )
                rooms.append(
                    (
                        left - sum(n for key, n in held.items() if counts(key)),
                        BudgetShortfall(left, why),
                    )
                )
        if not rooms:
            return None, None
        return min(room for room, _ in rooms), min(
            (over for _, over in rooms), key=lambda over: over.left
        )

    def fail_open(
        self,
        run_id: str,
        lane: Lane,
        kind: str,
        error: str,
        items: Sequence[int] | None = None,
        *,
        above: int | None = None,
    ) -> Iterable[int]:
        with self._lock:
            wanted = self._rows if items is None else set(items)
            stopped = [
                row
                for row in self._open[lane]
                if row.item.item_no in wanted and (above is None or row.item.reserve > above)
            ]
            gone = {row.item.item_no for row in stopped}
            self._open[lane] = deque(
                row for row in self._open[lane] if row.item.item_no not in gone
            )
            for row in stopped:
                row.state, row.kind, row.error = "failed", kind, error
            return [row.item.item_no for row in stopped]

    def release(self, run_id: str, owner: str, items: Sequence[int] | None = None) -> None:
        with self._lock:
            for item_no in list(self._leased) if items is None else items:
                if (row := self._leased.pop(item_no, None)) is not None:
                    row.state = "open"
                    self._open[_lane(row)].appendleft(row)

    def reopen(self, run_id: str, items: Sequence[int]) -> None:
        with self._lock:
            for item_no in items:
                row = self._rows[item_no]
                row.state, row.is_cached = "open", False
                self._open[_lane(row)].append(row)

    def item_states(self, run_id: str) -> list[LedgerSettlement]:
        return [
            LedgerSettlement(n, row.state, row.kind, row.error, row.n_attempts, row.is_cached)
            for n, row in sorted(self._rows.items())
        ]

    def results(self, keys: Sequence[str]) -> Mapping[str, str]:
        return self._cache.get_many(keys)

    def spending(self, run_id: str) -> Mapping[Lane, Spending]:
        return dict(self._spent)

    def pause(self, run_id: str, until: datetime, why: str) -> None:
        """Nothing is kept, nor is there anybody who would go on."""

    def end(self, run_id: str) -> None:
        """Nothing is kept."""


def _lane(row: _Row) -> Lane:
    return row.item.provider, row.item.model
