"""Limits calls to a provider: concurrency, rates, pauses, prices and budgets."""

import math
import random
import time
from collections import deque
from collections.abc import Callable

from pydantic import Field

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.protocols import LONGEST_PAUSE_S, Budget
from rlhf_pipeline.generate.completions.base import CompletionRequest

RECENT_S = 5.0  # how long a call counts towards whether its provider is full
FULL = 6  # refusals in that time that are not random: 1 in 7,000 of 12 calls at 8 % refused ones
BURST_S = 2.0  # seconds of a rate that may be used at once
BILLION = 1_000_000_000
OVERHEAD = 64  # tokens that a chat template may add to a prompt
BYTES_PER_TOKEN = 4  # of a rate's estimate, corrected by the provider's count


class CallParams(Parameters):
    """How a provider is called: concurrency, retries, prices and budgets."""

    concurrency: int = Field(
        default=16, ge=1, le=1024, description="Concurrent calls to one provider and model"
    )
    requests_per_minute: float | None = Field(
        default=None, gt=0, description="Most calls a minute; empty = no limit"
    )
    tokens_per_minute: float | None = Field(
        default=None,
        gt=0,
        description="Most tokens a minute, prompt and completion; empty = no limit",
    )
    max_attempts: int = Field(
        default=8,
        ge=1,
        le=100,
        description="Attempts that may fail by the provider's fault before an item fails "
        "permanently",
    )
    max_refusals: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Attempts of one item that a full provider may refuse (429, 529)",
    )
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds without a byte after which a call is given up",
    )
    backoff_s: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="Longest random wait before the second attempt in seconds; doubles each time",
    )
    max_backoff_s: float = Field(
        default=30.0, ge=0, le=600, description="Limit of that wait in seconds"
    )
    max_pause_s: float = Field(
        default=600.0,
        ge=0,
        le=LONGEST_PAUSE_S,
        description="A run is paused if its provider asks for a longer wait (seconds)",
    )
    prompt_price: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Price of a million prompt tokens; empty = unknown",
    )
    completion_price: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Price of a million completion tokens; empty = unknown",
    )
    budget_per_run: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Budget of a run in the currency of the prices; empty = no limit",
    )
    budget_per_day: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Budget of the project per day (UTC)",
    )
    budget_per_provider: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Total budget of the project per provider",
    )

    @property
    def budget(self) -> Budget:
        """Raises ConfigurationError for a budget without prices."""
        limits = (self.budget_per_run, self.budget_per_day, self.budget_per_provider)
        if any(limit is not None for limit in limits) and None in (
            self.prompt_price,
            self.completion_price,
        ):
            raise ConfigurationError(
                "A budget needs prices. Set prompt_price and completion_price to the provider's "
                "prices of a million tokens, or drop the budget."
            )
        return Budget(*(None if limit is None else int(limit * BILLION) for limit in limits))

    def cost(self, n_prompt_tokens: int, n_tokens: int) -> int:
        """Billionths of the currency, rounded up; 0 without prices."""
        price = n_prompt_tokens * (self.prompt_price or 0) + n_tokens * (self.completion_price or 0)
        return math.ceil(round(price * 1000, 6))

    def max_cost(self, request: CompletionRequest) -> int:
        """Upper bound of the cost of a call: a token has at least one byte."""
        return self.cost(prompt_bytes(request) + OVERHEAD, request.max_tokens)

    def backoff(self, n_tries: int) -> float:
        """Seconds before the next attempt, after `n_tries`: full jitter."""
        return random.uniform(
            0, min(self.max_backoff_s, self.backoff_s * 2 ** min(n_tries - 1, 30))
        )


def prompt_bytes(request: CompletionRequest) -> int:
    return len((request.prompt + (request.system or "")).encode("utf-8", "surrogatepass"))


def expected_tokens(request: CompletionRequest) -> int:
    """Estimated tokens of a call: those of the prompt plus the limit of the completion."""
    return prompt_bytes(request) // BYTES_PER_TOKEN + request.max_tokens


class Rate:
    """When the next call keeps a limit a minute; None is no limit. The last call may take more than
    is left, and later ones wait for it.
    """

    def __init__(
        self, per_minute: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = math.inf if per_minute is None else per_minute / 60
        self._clock = clock
        self._until = -math.inf  # when the rate has made up for all that was taken

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - self._clock() - BURST_S)

    def take(self, n: float) -> None:
        self._until = max(self._until, self._clock()) + n / self._per_s


class Pause:
    """When a provider may be called again, for all its models. It is full, and pauses, if it
    refused most of the calls of the last seconds; other refusals delay only their own call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._recent = deque[tuple[float, bool]]()  # end of a call, and whether it was refused

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - self._clock())

    def record(self, wait_s: float | None) -> None:
        """Record the end of a call: None, or the waiting time that its refusal asks for."""
        now = self._clock()
        self._recent.append((now, wait_s is not None))
        while self._recent[0][0] < now - RECENT_S:
            self._recent.popleft()
        n_refused = sum(is_refused for _, is_refused in self._recent)
        if wait_s is not None and n_refused >= FULL and 2 * n_refused > len(self._recent):
            self._until = max(self._until, now + wait_s)
