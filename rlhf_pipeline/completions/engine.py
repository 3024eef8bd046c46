"""k completions of every prompt over a grid of parameters. Knows backends, ledgers and the cache by protocol; knows no model and no store."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import TypeVar, overload

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.completions.base import CompletionBackend, CompletionRequest, CompletionResult, HostedBackend
from rlhf_pipeline.completions.batch_work import BatchWork
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.memory import MemoryLedger
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.workers import OnItem, Work, complete_in_batches, in_a_loop, run_hosted
from rlhf_pipeline.errors import BackendUnavailable, CompletionError, ConfigurationError, ProviderParked
from rlhf_pipeline.frames import COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.protocols import CompletionCache, Lane, Progress, Settled, Spending, WorkItem, WorkLedger, silent
from rlhf_pipeline.records import content_hash, content_id

SEEDS = 2**31  # what providers and torch both take
KEY_BYTES = 32
KEY_VERSION = 2  # of what a cache key is made of
ROWS_AT_ONCE = 5_000
ROUNDS = 3  # in which what a cache lost meanwhile is made again

T = TypeVar("T")


class CompletionParams(BaseModel):
    """How many completions of a prompt, sampled how."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(default=4, ge=1, le=64, description="Completions per prompt and model")
    temperatures: list[float] = Field(default=[0.7, 1.0], min_length=1, description="Sampling temperatures, 0 to 2; 0 is greedy")
    top_ps: list[float] = Field(default=[1.0, 0.9], min_length=1, description="Nucleus masses, above 0 and up to 1")
    max_new_tokens: int = Field(default=48, ge=1, le=32768, description="Tokens after which a completion is cut off")
    seed: int = Field(default=0, ge=0, description="Every sample's own seed is derived from it, the day and the prompt")
    batch_size: int = Field(default=64, ge=1, le=4096, description="Requests handed at once to a backend on this machine")
    system: str | None = Field(default=None, description="System prompt, for providers; empty = none")


@dataclass(frozen=True)
class Generation:
    """What asking came to: the frame, and what it cost to make. `kinds` counts the rows that failed by reason."""

    run_id: str
    frame: pd.DataFrame
    spent: Mapping[Lane, Spending]
    kinds: Mapping[str, int]
    n_cached: int
    n_attempts: int
    seconds: float

    @property
    def cost(self) -> float:
        """In the currency of the prices; known bills only."""
        return sum(s.cost for s in self.spent.values()) / 1e9

    @property
    def n_unknown(self) -> int:
        """Calls that may have been billed, which nobody can say."""
        return sum(s.n_unknown for s in self.spent.values())

    @property
    def cost_unknown(self) -> float:
        """What these may have cost at worst."""
        return sum(s.cost_unknown for s in self.spent.values()) / 1e9


def complete_prompts(
    prompts: pd.DataFrame,
    backend: CompletionBackend,
    params: CompletionParams,
    *,
    cache: CompletionCache | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """`params.k` completions of each row of `prompts` (PROMPTS), as COMPLETIONS in the order of the prompts, with no ledger but this call's.

    What `cache` holds is not generated again, and what is made goes there at once. See `generate`, also for what is raised.
    """
    return generate(prompts, [backend], params, ledger=MemoryLedger(cache), progress=progress).frame


def generate(
    prompts: pd.DataFrame,
    backends: Sequence[CompletionBackend],
    params: CompletionParams,
    *,
    ledger: WorkLedger,
    calls: CallParams | None = None,
    asset: str = "completions",
    origin: str | None = None,
    progress: Progress = silent,
    on_text: OnItem | None = None,
    rng: random.Random | None = None,
) -> Generation:
    """`params.k` completions of each row of `prompts` (PROMPTS) by each backend; every one of them is an item of `ledger`.

    The grid temperatures x top_ps is cycled over the k samples, each with a seed of its own that depends on neither the batch nor the
    order of the prompts. The same prompts, backends and parameters are the same run: one that was cut off goes on where it was, one
    that ended calls for nothing but what had failed. A request that failed for good is a row with an empty text and its `error`.

    Raises ConfigurationError for parameters out of range, BackendUnavailable when no backend can work at all, ProviderParked when one
    asks for more patience than a run has (what is missing stays open, for the next run of `origin`'s job), CompletionError when every
    single request failed, StoreError where the ledger cannot be written.
    """
    calls = calls or CallParams()
    asked = _Asked(check_frame(prompts, PROMPTS), backends, params, calls)
    run_id = content_id("run", asset, list(asked.keys))
    record = json.dumps({
        "params": params.model_dump(),
        "calls": calls.model_dump(exclude_none=True),
        "models": [[backend.name, backend.model_version] for backend in backends],
    })  # fmt: skip
    began = perf_counter()
    ledger.start(run_id, asked.items, asset=asset, record=record, origin=origin)
    frame, gone = COMPLETIONS.empty(), list[int]()
    settled: Sequence[Settled] = ()
    for _ in range(ROUNDS):
        settled = ledger.settled(run_id)
        left = {s.item_no for s in settled if s.state in ("open", "leased")}
        if left:
            _work(run_id, asked, backends, params, calls, ledger, left, progress, on_text, rng)
            settled = ledger.settled(run_id)
        else:
            progress(len(settled), len(settled), "made before")
        frame, gone = _frame(asked, ledger, settled)
        if not gone:
            break
        ledger.reopen(run_id, gone)  # pruned, or not what was stored
    else:
        raise CompletionError(f"The store loses completions as they are made: {len(gone)} of {len(settled)} are gone. Check its disk.")
    ledger.end(run_id)
    failed = [s for s in settled if s.state == "failed"]
    if settled and len(failed) == len(settled):
        named = ", ".join(f"{backend.name} ({backend.model_version})" for backend in backends)
        raise CompletionError(f"All {len(settled)} completions by {named} failed; the first: {failed[0].error}")
    return Generation(
        run_id=run_id,
        frame=frame,
        spent=ledger.spent(run_id),
        kinds=dict(Counter(s.kind or "unknown" for s in failed).most_common()),
        n_cached=sum(s.is_cached for s in settled),
        n_attempts=sum(s.n_attempts for s in settled),
        seconds=perf_counter() - began,
    )


def parameter_grid(params: CompletionParams) -> list[tuple[float, float]]:
    """(temperature, top_p) of samples 0 to k-1."""
    bad = [t for t in params.temperatures if not 0 <= t <= 2] + [p for p in params.top_ps if not 0 < p <= 1]
    if bad:
        raise ConfigurationError(f"{bad} cannot be sampled with. Temperatures go from 0 to 2, top_ps from above 0 to 1.")
    grid = list(product(params.temperatures, params.top_ps))
    return [grid[i % len(grid)] for i in range(params.k)]


def cache_key(backend: CompletionBackend, request: CompletionRequest) -> str:
    """What decides the text, and nothing else: no prompt's id, batch, key, timeout or run, nor whether it is streamed."""
    whose = (backend.name, getattr(backend, "provider", ""), getattr(backend, "model", ""), backend.model_version)
    sampling = (request.temperature, request.top_p, request.seed, request.sample_index, request.max_tokens)
    return content_hash("completion", KEY_VERSION, whose, request.system, request.prompt, sampling)


class _Asked:
    """Everything asked for, by item number. What can be made again from the prompts is: of a hundred thousand, items would fill a gigabyte."""

    def __init__(self, prompts: pd.DataFrame, backends: Sequence[CompletionBackend], params: CompletionParams, calls: CallParams) -> None:
        if not backends:
            raise ConfigurationError("No completion backend was given: name one at least.")
        self._days, self._ids, self._texts = (prompts[name].array for name in ("day", "prompt_id", "text"))
        self._grid = parameter_grid(params)
        self._backends = backends
        self._params = params
        self._calls = calls
        serving = Counter((backend.name, backend.model_version) for backend in backends)
        # Two providers of one model may well write the same text: two completions all the same.
        self._makers = [f"{b.name} at {lane_of(b)[0]}" if serving[b.name, b.model_version] > 1 else b.name for b in backends]
        self.requests = _Made(len(self._ids) * len(self._grid) * len(backends), self._request)
        made = (cache_key(self.backend(item_no), request) for item_no, request in enumerate(self.requests))
        self._keys = b"".join(map(bytes.fromhex, made))  # a third of the texts' size
        self.keys = _Made(len(self.requests), lambda n: self._keys[n * KEY_BYTES : (n + 1) * KEY_BYTES].hex())
        self.items = _Made(len(self.requests), self._item)

    def day(self, item_no: int) -> str:
        return str(self._days[self._place(item_no)[0]])

    def backend(self, item_no: int) -> CompletionBackend:
        return self._backends[self._place(item_no)[2]]

    def maker(self, item_no: int) -> str:
        """What stands for the backend in a completion's id."""
        return self._makers[self._place(item_no)[2]]

    def _place(self, item_no: int) -> tuple[int, int, int]:
        """Which prompt, sample and backend."""
        of_sample, which = divmod(item_no, len(self._backends))
        return *divmod(of_sample, len(self._grid)), which

    def _request(self, item_no: int) -> CompletionRequest:
        row, index, _ = self._place(item_no)
        # By day too: a prompt that comes again another day gets other completions, with ids of their own.
        first_seed = int(content_hash("seed", self._params.seed, self._days[row], self._ids[row])[:12], 16)
        temperature, top_p = self._grid[index]
        return CompletionRequest(
            prompt_id=self._ids[row],
            prompt=self._texts[row],
            temperature=temperature,
            top_p=top_p,
            sample_index=index,
            seed=(first_seed + index) % SEEDS,
            max_tokens=self._params.max_new_tokens,
            system=self._params.system,
        )

    def _item(self, item_no: int) -> WorkItem:
        backend, request = self.backend(item_no), self._request(item_no)
        lane = lane_of(backend)
        is_hosted = isinstance(backend, HostedBackend)
        sampling = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed, "max_tokens": request.max_tokens}
        return WorkItem(
            item_no=item_no,
            # Rows of like length share a batch where padding costs.
            position=len(request.prompt) if getattr(backend, "likes_equal_lengths", False) else item_no,
            prompt_id=request.prompt_id,
            provider=lane[0],
            model=lane[1],
            sample_index=request.sample_index,
            params=json.dumps(sampling),
            cache_key=self.keys[item_no],
            reserve=self._calls.most(request) if is_hosted else 0,
            is_metered=is_hosted,
        )


class _Made(Sequence[T]):
    """As many as there are, each made when it is asked for."""

    def __init__(self, n: int, make: Callable[[int], T]) -> None:
        self._n = n
        self._make = make

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._make(i) for i in range(*at.indices(self._n))]
        if not -self._n <= at < self._n:
            raise IndexError(at)
        return self._make(at % self._n)


def lane_of(backend: CompletionBackend) -> Lane:
    """Whose limits a backend's calls share; one on this machine shares none."""
    return (backend.provider, backend.model) if isinstance(backend, HostedBackend) else (backend.name, backend.model_version)


def _work(
    run_id: str,
    asked: _Asked,
    backends: Sequence[CompletionBackend],
    params: CompletionParams,
    calls: CallParams,
    ledger: WorkLedger,
    left: set[int],
    progress: Progress,
    on_text: OnItem | None,
    rng: random.Random | None,
) -> None:
    """All that is left, providers first. Raises BackendUnavailable where every backend is."""
    hosted = {lane_of(backend): backend for backend in backends if isinstance(backend, HostedBackend)}
    local = {lane_of(backend): backend for backend in backends if not isinstance(backend, HostedBackend)}
    if len(hosted) + len(local) < len(backends):
        raise ConfigurationError("Two backends are the same provider and model: their completions could not be told apart. Name each once.")
    total, began = len(asked.items), perf_counter()
    parts = {lane: _part(run_id, asked, calls, ledger, left, {lane}) for lane in local}
    network = _part(run_id, asked, calls, ledger, left, set(hosted))

    def told() -> None:
        works = [network, *parts.values()]
        n_left, n_failed = sum(len(work.left) + len(work.parked) for work in works), sum(work.n_failed for work in works)
        progress(total - n_left, total, _note(len(left) - n_left, n_failed, perf_counter() - began, network if hosted else None))

    unavailable: dict[Lane, str] = {}
    for work in (network, *parts.values()):
        work.told = told
    if network.left and calls.batch:
        unavailable |= _by_batches(network, hosted, rng)
    elif network.left:
        unavailable |= {lane: str(reply.error) for lane, reply in run_hosted(network, hosted, rng=rng, on_text=on_text).items()}
    for lane, backend in local.items():
        complete_in_batches(parts[lane], backend, lane, params.batch_size, on_text)
    if network.parked_until is not None:
        why = " ".join(unavailable.values())
        ledger.park(run_id, network.parked_until, why)
        raise ProviderParked(
            f"{why} {len(network.parked):,} of {total:,} completions wait until {network.parked_until:%Y-%m-%d %H:%M:%S} UTC, the others are "
            "kept. The sensor `parked` runs the asset again then; other runs go on where they were when they are started again."
        )
    if unavailable and len(unavailable) == len(backends):
        ledger.end(run_id)  # once it is mended, all that failed is open again
        raise BackendUnavailable(" ".join(unavailable.values()))


def _by_batches(network: Work, hosted: Mapping[Lane, HostedBackend], rng: random.Random | None) -> dict[Lane, str]:
    """One provider after the other; those that were given up or parked, and why."""
    closed: dict[Lane, str] = {}
    for lane, backend in hosted.items():
        if not isinstance(backend, OpenAICompatibleBackend):
            raise ConfigurationError(f"The backend {backend.name} has no Batch API here. Set batch to false, or use openai_compatible.")
        batched = BatchWork(network, lane, backend, rng)
        in_a_loop(batched.run)
        if batched.closed is not None:
            closed[lane] = str(batched.closed.error)
    return closed


def _part(run_id: str, asked: _Asked, calls: CallParams, ledger: WorkLedger, left: set[int], lanes: set[Lane]) -> Work:
    """What is left of some lanes."""
    mine = {i for i in left if lane_of(asked.backend(i)) in lanes}
    return Work(run_id, ledger, asked.items, asked.requests, calls, mine)


def _note(n_made: int, n_failed: int, seconds: float, network: Work | None) -> str:
    """What beside the count is worth watching: of providers the rate and the spending."""
    parts = [f"{n_failed} failed"] if n_failed else []
    if network is not None:
        parts.append(f"{n_made / max(seconds, 1e-9):.1f}/s")
        if network.params.prompt_price is not None or network.params.completion_price is not None:
            spent = sum(s.cost + s.cost_unknown for s in network.ledger.spent(network.run_id).values())
            parts.append(f"{spent / 1e9:.4f} spent")
    return ", ".join(parts)


def _frame(asked: _Asked, ledger: WorkLedger, settled: Sequence[Settled]) -> tuple[pd.DataFrame, list[int]]:
    """COMPLETIONS of what is settled, made piece by piece; and the items whose text the store no longer has."""
    pieces, gone = [COMPLETIONS.empty()], list[int]()
    for start in range(0, len(settled), ROWS_AT_ONCE):
        some = settled[start : start + ROWS_AT_ONCE]
        kept = ledger.results([asked.keys[s.item_no] for s in some if s.state == "succeeded"])
        gone += [s.item_no for s in some if s.state == "succeeded" and asked.keys[s.item_no] not in kept]
        if not gone:
            texts = (CompletionResult.from_json(kept[asked.keys[s.item_no]]) if s.state == "succeeded" else None for s in some)
            rows = [_row(asked, one, text) for one, text in zip(some, texts, strict=True)]
            pieces.append(check_frame(pd.DataFrame(rows, columns=list(COMPLETIONS.columns)), COMPLETIONS))
    frame = pd.concat(pieces[1:], ignore_index=True) if len(pieces) > 1 else pieces[0]
    # Each piece is checked; all of it is again only where an id of one stands in another, to say which.
    return frame if frame["completion_id"].is_unique else check_frame(frame, COMPLETIONS), gone


def _row(asked: _Asked, settled: Settled, result: CompletionResult | None) -> dict[str, object]:
    request, backend = asked.requests[settled.item_no], asked.backend(settled.item_no)
    reason = "content_filter" if settled.kind == "content_filter" else "error"
    result = result or CompletionResult.failed(settled.error or "", finish_reason=reason)
    text = (result.text or "") if result.error is None else ""
    sampling: tuple[object, ...] = (request.temperature, request.top_p, request.seed, request.max_tokens)
    if request.system is not None:
        sampling = (*sampling, request.system)
    return {
        "day": asked.day(settled.item_no),
        "completion_id": content_id(
            request.prompt_id, backend.model_version, asked.maker(settled.item_no), sampling, request.sample_index, text
        ),
        "prompt_id": request.prompt_id,
        "text": text,
        "backend": backend.name,
        "model_version": backend.model_version,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "sample_index": request.sample_index,
        "seed": request.seed,
        "n_prompt_tokens": result.n_prompt_tokens,
        "n_tokens": result.n_tokens,
        "latency_ms": result.latency_ms,
        "finish_reason": result.finish_reason,
        "error": result.error,
    }
