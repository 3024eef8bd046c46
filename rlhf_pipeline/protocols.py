"""What stages need from outside, as protocols: handed in, never imported. Knows no
implementation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol


class Clock(Protocol):
    """Where `now` comes from, so that a simulated day is a day."""

    def now(self) -> datetime: ...


class Progress(Protocol):
    """Told of long work; `done` of `total` units, with the number that matters in `note`."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class TextGenerator(Protocol):
    """Anything that turns instructions into text, for free-form prompts."""

    def generate_texts(self, instructions: Sequence[str], *, seed: int) -> list[str]: ...


class CompletionCache(Protocol):
    """Completions by content fingerprint: a hit is never generated, or paid for, again."""

    def get_many(self, keys: Sequence[str]) -> Mapping[str, str]: ...

    def put_many(self, entries: Mapping[str, str]) -> None: ...


class FileHashes(Protocol):
    """The SHA-256 of every file that the project wrote, by its path below the home; frames are
    below `frames/` wherever they lie.
    """

    def record_replacement(self, contents: Mapping[str, bytes]) -> AbstractContextManager[None]:
        """Accept the old and the new content of these files while the block runs, and the new one
        alone once it ends.
        """
        ...

    def find_changed(self, contents: Mapping[str, bytes]) -> Sequence[str]:
        """Those of the paths whose content is none that was recorded; a file that was never
        recorded is not among them.
        """
        ...


Lane = tuple[str, str]  # provider and model: what shares a limit
ItemState = Literal["open", "leased", "succeeded", "failed"]
Outcome = Literal["succeeded", "retryable", "terminal"]
Billing = Literal["metered", "none", "unknown"]
# ends the name of an owner whose claims are no calls: of one that died nothing is lost, nor perhaps
# billed
NO_CALLS_SUFFIX = "-looks"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One completion asked for. `reserve` is the most that one call for it can cost, in billionths
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
    """An item that is this worker's until it is settled or its lease ends; what was tried
    before.
    """

    item_no: int
    n_attempts: int
    n_faults: int  # since the run was started again, as is what follows from it
    n_before: int = 0  # attempts before the run was started again


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call, what it cost in billionths of the currency, and what becomes of its item."""

    item_no: int
    provider: str
    model: str
    cache_key: str
    started_at: datetime
    latency_ms: float
    outcome: Outcome
    kind: str
    becomes: Literal["open", "succeeded", "failed"]
    is_fault: bool  # counts against the item: a full provider does not
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


@dataclass(frozen=True, slots=True)
class Budget:
    """Most that may be spent, in billionths of the currency: in this run, on this day (UTC) by the
    project, with a provider ever.
    """

    run: int | None = None
    day: int | None = None
    provider: int | None = None

    @property
    def is_set(self) -> bool:
        return (self.run, self.day, self.provider) != (None, None, None)


@dataclass(frozen=True, slots=True)
class BudgetShortfall:
    """What a budget has left for one call, in billionths of the currency, and which budget it
    is.
    """

    left: int
    why: str


@dataclass(frozen=True, slots=True)
class LedgerTransaction:
    """What one transaction of the ledger came to."""

    claimed: Mapping[Lane, Sequence[Claim]]
    from_cache: Sequence[int]  # items that equal keys had answered
    # lanes of which some calls do not fit, whatever becomes of those under way
    over_budget: Mapping[Lane, "BudgetShortfall"]
    # left to claim, and under way elsewhere; only where less was found than wanted, or nothing was
    n_open: int | None = None
    n_leased: int | None = None
    due_s: float | None = None  # until the next of them may be tried again
    # items whose failure does not count: their claim had ended, and others may be asking for them
    late: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LedgerSettlement:
    """Where an item stands, and why."""

    item_no: int
    state: ItemState
    kind: str | None
    error: str | None
    n_attempts: int
    is_cached: bool


@dataclass(frozen=True, slots=True)
class Spending:
    """What calls came to: tokens as told by the provider, money in billionths; `n_unknown` calls
    may have been billed, at worst so much.
    """

    n_calls: int = 0
    n_unknown: int = 0
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost: int = 0
    cost_unknown: int = 0


WRITE_AGAIN_S = (0.2, 1.0, 3.0)
RENEW_S = 30.0


class WorkLedger(Protocol):
    """Every completion asked for, as a row that is claimed, called for and settled. Calls may come
    from any thread or process.
    """

    write_again_s: tuple[float, ...]  # waits before a write that the store refused is tried again
    renew_s: float  # between two renewals of claims while something long is done with them

    def start(
        self,
        run_id: str,
        items: Sequence[WorkItem],
        *,
        asset: str,
        record: str,
        origin: str | None = None,
    ) -> None:
        """Note what is asked for, and which run of Dagster asks. One that was cut off or parked
        goes on where it was, at the prices of now; of one that ended, what had failed is open
        again."""
        ...

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
        """Settle what was tried and claim as many as wanted, in one transaction. Leases of the dead
        are taken back.

        A lane of which nothing is wanted is counted all the same: somebody else may have it under
        way.
        """
        ...

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
        """Fail what is open in a lane, of `items` or at all, that reserves more than `above`,
        uncalled. Told item by item, as it is done.

        With `above`, what the cache answers stays open: the next turn takes it, for nothing."""
        ...

    def release(self, run_id: str, owner: str, items: Sequence[int] | None = None) -> None:
        """Give back what was claimed and not called for; all of the owner's by default."""
        ...

    def reopen(self, run_id: str, items: Sequence[int]) -> None:
        """Items whose result is lost are to be made again."""
        ...

    def pause(self, run_id: str, until: datetime, why: str) -> None:
        """What is open waits for a provider until then; nobody calls for it before the run is
        started again.
        """
        ...

    def item_states(self, run_id: str) -> Iterable[LedgerSettlement]:
        """Every item of the run, in order, a few at a time."""
        ...

    def results(self, keys: Sequence[str]) -> Mapping[str, str]:
        """What is kept under these keys."""
        ...

    def spending(self, run_id: str) -> Mapping[Lane, Spending]:
        """By provider and model."""
        ...

    def end(self, run_id: str) -> None:
        """Nothing of the run is open any more."""
        ...


def ignore_progress(done: int, total: int, note: str = "") -> None:
    """The null Progress."""
