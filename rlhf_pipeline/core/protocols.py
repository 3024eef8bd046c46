"""Protocols that callers implement for stages: clock, progress, cache, ledger."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol


class Clock(Protocol):
    """Source of the current time, so that a simulation can set its own."""

    def now(self) -> datetime: ...


class Progress(Protocol):
    """Receives the progress of long work: `done` of `total` units, and the current figure in
    `note`.
    """

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class TextGenerator(Protocol):
    """Anything that turns instructions into text, for free-form prompts."""

    def generate_texts(self, instructions: Sequence[str], *, seed: int) -> list[str]: ...


Lane = tuple[str, str]  # provider and model: what shares a limit
ItemState = Literal["open", "leased", "succeeded", "failed"]
Outcome = Literal["succeeded", "retryable", "terminal"]
Billing = Literal["metered", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One requested completion. `reserve` is the most that one call for it can cost, in billionths
    of the currency.
    """

    item_no: int
    position: int
    prompt_id: str
    provider: str
    model: str
    sample_index: int
    params: str
    cache_key: str
    reserve: int
    is_metered: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """An item leased to this worker until it is settled or the lease ends, with its earlier
    attempts.
    """

    item_no: int
    n_attempts: int
    n_faults: int  # since the run was last started
    n_before: int = 0  # attempts before that start


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call: its cost in billionths of the currency and the next state of its item."""

    item_no: int
    provider: str
    model: str
    cache_key: str
    started_at: datetime
    latency_ms: float
    outcome: Outcome
    kind: str
    becomes: Literal["open", "succeeded", "failed"]
    is_fault: bool  # counts against the item's retries; a rate limit does not
    billing: Billing
    status: int | None = None
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost: int = 0
    wait_s: float | None = None
    error: str | None = None
    partial: str | None = None
    result: str | None = None
    not_before: datetime | None = None


class CallObserver(Protocol):
    """Receives the calls of a transaction that recorded them. It is quick and never raises."""

    def __call__(self, attempts: Sequence[Attempt]) -> None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Spending limits in billionths of the currency: of this run, of the project on this UTC day,
    and of a provider over all time.
    """

    run: int | None = None
    day: int | None = None
    provider: int | None = None

    @property
    def is_set(self) -> bool:
        return (self.run, self.day, self.provider) != (None, None, None)


@dataclass(frozen=True, slots=True)
class BudgetShortfall:
    """The budget that blocks a call, and what it has left in billionths of the currency."""

    left: int
    why: str


@dataclass(frozen=True, slots=True)
class LedgerTransaction:
    """Result of one ledger transaction."""

    claimed: Mapping[Lane, Sequence[Claim]]
    from_cache: Sequence[int]  # items answered by the cache
    # lanes with calls that exceed a budget even if every call in flight turns out free
    over_budget: Mapping[Lane, "BudgetShortfall"]
    # Items still open, and items leased by other owners; set only if fewer were found than wanted,
    # or none were wanted.
    n_open: int | None = None
    n_leased: int | None = None
    due_s: float | None = None  # seconds until the next open item may be retried
    # Items whose failure is ignored: their lease had ended, and another worker may hold them.
    late: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LedgerSettlement:
    """The state of one item and its cause."""

    item_no: int
    state: ItemState
    kind: str | None
    error: str | None
    n_attempts: int
    is_cached: bool


@dataclass(frozen=True, slots=True)
class Spending:
    """Totals of calls: tokens as reported by the provider, money in billionths of the currency.
    `n_unknown` calls may have been billed, at most `cost_unknown`.
    """

    n_calls: int = 0
    n_unknown: int = 0
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost: int = 0
    cost_unknown: int = 0


WRITE_AGAIN_S = (0.2, 1.0, 3.0)
RENEW_S = 30.0
LONGEST_PAUSE_S = 604_800.0  # for which a run may wait for a provider


class WorkLedger(Protocol):
    """Every requested completion as a row that is claimed, called and settled; usable from any
    thread or process.
    """

    write_again_s: tuple[
        float, ...
    ]  # waits in seconds between retries of a write that the store refused
    renew_s: float  # seconds between two renewals of claims during long work

    def start(
        self,
        run_id: str,
        items: Sequence[WorkItem],
        *,
        asset: str,
        record: str,
        origin: str | None = None,
    ) -> None:
        """Record the items of a run and the Dagster run that requests them (`origin`). An
        interrupted or paused run continues at current prices; a run that ended reopens its failed
        items.
        """

    def settle_and_claim(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        n_by_lane: Mapping[Lane, int],
        budget: Budget,
        *,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        """Settle `attempts` and claim up to `n_by_lane` items, in one transaction. Leases of
        owners for which `is_dead` holds are revoked.

        Lanes with nothing wanted are counted too: another owner may be working on them.
        """

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
        """Fail open items of a lane (only `items`, if given) that reserve more than `above`,
        without calling. Yields each item number once it has failed.

        With `above`, items that the cache answers stay open: the next transaction settles them free
        of charge.
        """

    def release(self, run_id: str, owner: str, items: Sequence[int] | None = None) -> None:
        """Reopen items that were claimed but not called; by default all of the owner's."""

    def reopen(self, run_id: str, items: Sequence[int]) -> None:
        """Reopen items whose result is missing, so that they are generated again."""

    def pause(self, run_id: str, until: datetime, why: str) -> None:
        """Keep open items waiting for a provider until `until`; nobody calls for them before the
        run is started again.
        """

    def item_states(self, run_id: str) -> Iterable[LedgerSettlement]:
        """Every item of the run in order, read in small batches."""

    def results(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Stored results by cache key; keys without a result are absent."""

    def spending(self, run_id: str) -> Mapping[Lane, Spending]:
        """Spending of the run by provider and model."""

    def end(self, run_id: str) -> None:
        """Mark the run as finished: no item is open any more."""


def ignore_calls(attempts: Sequence[Attempt]) -> None:
    """The null CallObserver."""


def ignore_progress(done: int, total: int, note: str = "") -> None:
    """The null Progress."""
