"""The work of a run in the ledger, and how it is written there."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.protocols import Attempt, LedgerTransaction, WorkLedger
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.request_plan import Plan

LOOK_S = 0.5  # between two checks of items that another process has claimed

T = TypeVar("T")


@dataclass
class CompletionWork:
    """Items of one run. `on_settled` is called whenever some are settled."""

    run_id: str
    ledger: WorkLedger
    plan: Plan
    params: CallParams
    n_left: int
    on_settled: Callable[[], None] = lambda: None
    n_failed: int = 0
    lost: Counter[int] = field(default_factory=Counter)  # failed items by prompt
    useless: list[int] = field(init=False)  # prompts that can no longer give a pair
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.useless = [prompt for prompt in self.lost if self._is_useless(prompt)]

    def report(self) -> None:
        if not self.is_stopping:  # the callback may have interrupted the run
            self.on_settled()

    def settle(self, item_no: int, *, failed: bool = False) -> None:
        self.n_left -= 1
        if failed:
            self.n_failed += 1
            prompt = item_no // self.plan.n_of_prompt
            was_useless = self._is_useless(prompt)
            self.lost[prompt] += 1
            if self._is_useless(prompt) and not was_useless:
                self.useless.append(prompt)

    def settle_all(self, attempts: Sequence[Attempt], turn: LedgerTransaction) -> None:
        """Count what a transaction has settled."""
        for attempt in attempts:
            if attempt.becomes != "open" and attempt.item_no not in turn.late:
                self.settle(attempt.item_no, failed=attempt.becomes == "failed")
        for item_no in turn.from_cache:
            self.settle(item_no)

    def is_useless(self, item_no: int) -> bool:
        """Whether too few items of its prompt can still succeed."""
        return self._is_useless(item_no // self.plan.n_of_prompt)

    def items_of(self, prompts: Sequence[int]) -> list[int]:
        n = self.plan.n_of_prompt
        return [item_no for p in prompts for item_no in range(p * n, (p + 1) * n)]

    def _is_useless(self, prompt: int) -> bool:
        return self.plan.n_of_prompt - self.lost[prompt] < self.plan.least


def persist_with_retry(ledger: WorkLedger, do: Callable[..., T], *args: Any, **more: Any) -> T:
    """Write to the ledger; retry while the store refuses, because a refused write keeps nothing."""
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        wait_chain,
        wait_fixed,
    )

    waits_s = ledger.write_again_s
    retrying = Retrying(
        retry=retry_if_exception_type(StoreError),
        wait=wait_chain(*map(wait_fixed, waits_s)),
        stop=stop_after_attempt(len(waits_s) + 1),
        reraise=True,
    )
    return retrying(do, *args, **more)
