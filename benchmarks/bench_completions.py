"""Completions by a provider: our ledger, cache and meter beside a bare loop; every fault of a
provider; the edge of a budget.

The provider is the STUB in a process of its own, 200 ms to an answer. Run: python
benchmarks/bench_completions.py [--prompts 1000]
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import pandas as pd  # noqa: E402

from benchmarks.completion_calls import (  # noqa: E402
    CONCURRENCY,
    PARAMS,
    PRICES,
    K,
    make_bench_prompts,
    open_fresh_store,
    run_bare_loop,
    run_pipeline,
    serve_stub,
)
from benchmarks.completion_costs import measure_memory, measure_saving  # noqa: E402
from benchmarks.measurement import LimitTable, pin_to_cores  # noqa: E402
from rlhf_pipeline.comparisons.pairing import PairingParams, pair_completions  # noqa: E402
from rlhf_pipeline.completions import (  # noqa: E402
    AnthropicBackend,
    CallParams,
    CompletionParams,
    Generation,
    LocalBackend,
    OpenAICompatibleBackend,
)
from rlhf_pipeline.completions import generate as ask_all  # noqa: E402
from rlhf_pipeline.policy.causal_lm import Policy, load_policy  # noqa: E402
from rlhf_pipeline.prompts import PromptParams  # noqa: E402
from rlhf_pipeline.prompts import generate as make_prompts  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from tests.providers.stub_provider import Counters, Fault  # noqa: E402

SHARE = 0.9  # of the bare loop's rate
CPU_MS, CPU_AIM_MS = 3.5, 2.5  # of the client's, per completion
A_DAY = 10_000  # samples
LOCAL = 4  # times the tokens a CPU second of a plain loop


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Measured:
    wall_s: float
    cpu_s: float


@contextmanager
def measured(into: list[Measured]) -> Iterator[None]:
    wall, cpu = time.perf_counter(), cpu_s()
    yield
    into.append(Measured(time.perf_counter() - wall, cpu_s() - cpu))


def raw(url: str, frame: pd.DataFrame) -> None:
    """The same without the client: what its transport alone would give."""

    async def run() -> list[str]:
        import httpx2

        gate = asyncio.Semaphore(CONCURRENCY)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx2.AsyncClient(timeout=30, limits=limits) as client:

            async def one(text: str, seed: int) -> str:
                asked = {
                    "model": "stub-model",
                    "messages": [{"role": "user", "content": text}],
                    "temperature": 0.7,
                    "top_p": 1.0,
                    "seed": seed,
                    "max_tokens": 48,
                }
                async with gate:
                    answer = await client.post(f"{url}/chat/completions", json=asked)
                return str(json.loads(answer.content)["choices"][0]["message"]["content"])

            return await asyncio.gather(
                *(one(text, seed) for text in frame["text"] for seed in range(K))
            )

    assert len(asyncio.run(run())) == len(frame) * K


def rate(table: LimitTable, n_prompts: int, repeats: int) -> None:
    frame, n = make_bench_prompts(n_prompts), n_prompts * K
    alone: list[Measured] = []
    transport: list[Measured] = []
    with_us: list[Measured] = []
    second: list[Measured] = []
    n_again = 0
    with serve_stub() as stub:
        run_bare_loop(stub.base_url, frame[:32])  # imports and the first connection of each
        raw(stub.base_url, frame[:32])
        with open_fresh_store() as store:
            run_pipeline(store, frame[:32], stub.base_url)
        for _ in range(repeats):
            with measured(alone):
                run_bare_loop(stub.base_url, frame)
            with measured(transport):
                raw(stub.base_url, frame)
            stub.reset()
            with open_fresh_store() as store:
                with measured(with_us):
                    made = run_pipeline(store, frame, stub.base_url)
                counted = stub.read_counters()
                assert made.frame["error"].isna().all()
                with measured(second):
                    run_pipeline(store, frame, stub.base_url, asset="another")
                n_again += stub.read_counters().n_calls - counted.n_calls
    each = [n / m.wall_s for m in with_us]
    other = [n / m.wall_s for m in alone]
    shares = [a / b for a, b in zip(each, other, strict=True)]
    cpu = [m.cpu_s / n * 1000 for m in with_us]
    cpu_bare = [m.cpu_s / n * 1000 for m in alone]
    where = f"{n_prompts:,} prompts x {K}, {CONCURRENCY} at once, median of {repeats}"
    table.print_row(
        where, "bare AsyncOpenAI loop", f"{_spread(other)}/s, {_spread(cpu_bare, 2)} ms CPU each"
    )
    under = [n / m.wall_s for m in transport], [m.cpu_s / n * 1000 for m in transport]
    table.print_row(
        where,
        "raw httpx2 loop, the client's transport",
        f"{_spread(under[0])}/s, {_spread(under[1], 2)} ms CPU each",
    )
    table.print_row(
        where, "ours: ledger, cache, meter", f"{_spread(each)}/s, {_spread(cpu, 2)} ms CPU each"
    )
    share, cost = statistics.median(shares), statistics.median(cpu)
    table.print_row(
        where,
        "share of the bare loop's rate",
        _spread(shares, 2),
        f">= {SHARE}",
        passed=share >= SHARE,
    )
    table.print_row(
        where,
        "client CPU per completion",
        f"{cost:.2f} ms (aim {CPU_AIM_MS})",
        f"<= {CPU_MS} ms",
        passed=cost <= CPU_MS,
    )
    took = statistics.median(m.wall_s for m in second)
    table.print_row(
        where,
        "the same again, as another run",
        f"{n_again} calls, {took:.2f} s",
        "0 calls",
        passed=n_again == 0,
    )


def faults(table: LimitTable, n_prompts: int) -> None:
    cases: list[tuple[str, list[tuple[float, Fault]], dict[str, object]]] = [
        ("5 % 429 + 5 % 5xx", [(0.05, _status(429, 1000)), (0.05, _status(500, None))], {}),
        ("30 % 429 without a header", [(0.3, _status(429, None))], {}),
        ("5 % cut streams", [(0.05, Fault(kind="cut"))], {"stream": True}),
        ("2 % dropped replies", [(0.02, Fault(kind="drop"))], {}),
        ("Retry-After as a date, 2 s, 2 %", [(0.02, _status(429, 2000, "date"))], {}),
    ]
    for name, chances, calls in cases:
        with serve_stub(*chances) as stub, open_fresh_store() as store:
            began = time.perf_counter()
            made = run_pipeline(store, make_bench_prompts(n_prompts), stub.base_url, **calls)
            judge(
                table,
                f"{name}, {n_prompts * K:,} asked",
                made,
                stub.read_counters(),
                time.perf_counter() - began,
                store,
            )


def judge(
    table: LimitTable, where: str, made: Generation, counted: Counters, seconds: float, store: Store
) -> None:
    """Nothing lost, nothing twice, nothing early; what we say was spent is what the provider
    counted, or called unknown.
    """
    n = len(made.frame)
    lost = int(made.frame["error"].notna().sum())
    per_item = Counter(
        call["item_no"]
        for call in store.generation.read_calls(made.run_id)
        if call["outcome"] == "succeeded"
    )
    twice = sum(times > 1 for times in per_item.values())
    spent = list(made.spent.values())
    n_tokens = sum(s.n_tokens for s in spent)
    unknown = (
        f", {made.n_unknown} with unknown bill (at worst {made.cost_unknown:.4f})"
        if made.n_unknown
        else ""
    )
    table.print_row(
        where,
        "lost, duplicates, early",
        f"{lost}, {twice}, {counted.n_early_retries} in {seconds:.1f} s",
        "0, 0, 0",
        passed=(lost, twice, counted.n_early_retries) == (0, 0, 0),
    )
    calls = sum(s.n_calls for s in spent)
    table.print_row(
        where,
        "calls: ledger and STUB",
        f"{calls:,} and {counted.n_calls:,} for {n:,}{unknown}",
        "equal",
        passed=calls == counted.n_calls,
    )
    billed = (n_tokens, counted.n_tokens)
    if made.n_unknown:
        table.print_row(
            where,
            "answers billed that never came",
            f"{counted.n_billed - counted.n_answered} at the STUB",
            "all unknown",
            passed=counted.n_billed - counted.n_answered == made.n_unknown,
        )
    else:
        table.print_row(
            where,
            "completion tokens: ledger and STUB",
            f"{billed[0]:,} and {billed[1]:,}",
            "equal",
            passed=billed[0] == billed[1],
        )


def refusals(table: LimitTable, n_prompts: int) -> None:
    """The client with 10 retries and ours, in one run: refusals at random, and a real limit."""
    frame = make_bench_prompts(n_prompts)
    for share in (0.05, 0.08):
        chances = [(share, _status(429, 1000, "seconds")), (share, _status(500, None))]
        walls: list[Measured] = []
        with serve_stub(*chances) as stub, open_fresh_store() as store:
            with measured(walls):
                run_bare_loop(stub.base_url, frame, max_retries=10)
            stub.reset()
            with measured(walls):
                made = run_pipeline(store, frame, stub.base_url)
            counted = stub.read_counters()
            where = f"{share:.0%} 429 (Retry-After 1 s) + {share:.0%} 5xx, {n_prompts * K:,} asked"
            client_s, our_s = (one.wall_s for one in walls)
            table.print_row(
                where,
                "share of the client's rate",
                f"{client_s / our_s:.2f} ({our_s:.1f} s, the client {client_s:.1f} s)",
                ">= 0.8 (aim 1.0)",
                passed=client_s / our_s >= 0.8,
            )
            _print_honesty(table, where, made, counted)
    n_limit, window_s = int(n_prompts * K * 0.6), 60.0
    with serve_stub(quota=(n_limit, window_s)) as stub, open_fresh_store() as store:
        walls = []
        with measured(walls):
            made = run_pipeline(store, frame, stub.base_url)
        counted = stub.read_counters()
    clean: list[Measured] = []
    with serve_stub() as stub, open_fresh_store() as store, measured(clean):
        run_pipeline(store, frame, stub.base_url)
    where = f"a real limit of {n_limit:,} a minute, {n_prompts * K:,} asked"
    ideal_s = window_s + clean[0].wall_s * (1 - n_limit / (n_prompts * K))
    table.print_row(
        where,
        "of the ideal time",
        f"{walls[0].wall_s / ideal_s:.2f} ({walls[0].wall_s:.1f} s)",
        "<= 1.1",
        passed=walls[0].wall_s <= 1.1 * ideal_s,
    )
    share = counted.n_refused / counted.n_calls
    table.print_row(
        where, "refused calls", f"{share:.1%} ({counted.n_refused})", "<= 2 %", passed=share <= 0.02
    )
    waited = walls[0].wall_s - clean[0].wall_s
    waiting = (walls[0].cpu_s - clean[0].cpu_s) / waited
    table.print_row(
        where,
        "cores used while it waits",
        f"{waiting:.3f} over {waited:.0f} s",
        "<= 0.02",
        passed=waiting <= 0.02,
    )
    _print_honesty(table, where, made, counted)


def _print_honesty(table: LimitTable, where: str, made: Generation, counted: Counters) -> None:
    lost = int(made.frame["error"].notna().sum())
    twice = counted.n_billed - len(made.frame)
    table.print_row(
        where,
        "lost, paid twice, refused calls retried early",
        f"{lost}, {twice}, {counted.n_early_retries}",
        "0, 0, 0",
        passed=(lost, twice, counted.n_early_retries) == (0, 0, 0),
    )


def two_providers(table: LimitTable, n_prompts: int) -> None:
    """One asks to be left alone for two minutes at its first call; the other does not wait with
    it.
    """
    frame = make_bench_prompts(n_prompts)
    alone: list[Measured] = []
    with serve_stub() as stub, open_fresh_store() as store:
        run_pipeline(store, frame[:8], stub.base_url)  # imports
        with measured(alone):
            run_pipeline(store, frame, stub.base_url, asset="alone")
    with (
        serve_stub() as good,
        serve_stub((1.0, _status(429, 120_000, "seconds"))) as away,
        open_fresh_store() as store,
    ):
        began = time.perf_counter()
        ended: list[float] = []

        def interrupt_late(done: int, total: int, note: str) -> None:
            if done >= n_prompts * K and not ended:
                ended.append(time.perf_counter() - began)
                raise KeyboardInterrupt

        backends = [
            OpenAICompatibleBackend("stub-model", url) for url in (good.base_url, away.base_url)
        ]
        with suppress(KeyboardInterrupt):
            ask_all(
                frame,
                backends,
                PARAMS,
                ledger=store.generation,
                calls=CallParams(concurrency=CONCURRENCY),
                progress=interrupt_late,
            )
        seconds = ended[0] if ended else float("nan")
        n_asked = away.read_counters()
        where = f"Retry-After 120 s on one of two providers, {n_prompts * K:,} each"
        table.print_row(
            where,
            "the other ends",
            f"{seconds:.1f} s, {alone[0].wall_s:.1f} s alone",
            "<= 1.5 times",
            passed=seconds <= 1.5 * alone[0].wall_s,
        )
        [run] = store.generation.list_runs()
        lost = n_prompts * K * 2 - run.states.get("succeeded", 0) - run.states.get("open", 0)
        table.print_row(
            where,
            "lost of either",
            f"{lost}; {run.states.get('open', 0):,} wait for the one",
            "0",
            passed=lost == 0,
        )
        table.print_row(
            where,
            "the one is asked again early",
            f"{n_asked.n_early} of {n_asked.n_calls} calls",
            "0",
            passed=n_asked.n_early == 0,
        )


def budget(table: LimitTable) -> None:
    """64 calls at once at the edge: the worst case of each is held back before it is made."""
    frame = make_bench_prompts(400)
    with serve_stub() as stub:
        for limit in (0.01, 0.05, 0.13):
            stub.reset()
            with open_fresh_store() as store:
                made = run_pipeline(store, frame, stub.base_url, budget_per_run=limit)
                counted = stub.read_counters()
                paid = (
                    counted.n_prompt_tokens * PRICES["prompt_price"]
                    + counted.n_tokens * PRICES["completion_price"]
                ) / 1e6
                where = f"budget {limit:g}, {CONCURRENCY} at once"
                done = int(made.frame["error"].isna().sum())
                table.print_row(
                    where,
                    "billed by the STUB",
                    f"{paid:.6f} for {done} of {len(made.frame)}",
                    f"<= {limit:g}",
                    passed=paid <= limit,
                )
                same = abs(made.cost - paid) < 1e-9
                table.print_row(
                    where, "spent by the ledger", f"{made.cost:.6f}", "equal", passed=same
                )


def anthropic(table: LimitTable, n_prompts: int) -> None:
    with serve_stub() as stub, open_fresh_store() as store:
        spent: list[Measured] = []
        with measured(spent):
            made = ask_all(
                make_bench_prompts(n_prompts),
                [AnthropicBackend("stub-model", stub.base_url)],
                PARAMS,
                ledger=store.generation,
                calls=CallParams(concurrency=CONCURRENCY, **PRICES),
            )
        n = len(made.frame)
        table.print_row(
            "anthropic",
            "messages API",
            f"{n / spent[0].wall_s:.0f}/s, {spent[0].cpu_s / n * 1000:.2f} ms CPU each",
        )
        judge(table, "anthropic, no faults", made, stub.read_counters(), spent[0].wall_s, store)


def a_day(table: LimitTable, n_samples: int) -> None:
    """Samples through prompts, completions and comparisons, on two cores."""
    day, k = "2026-01-01", 4
    with pin_to_cores(2) as cores, serve_stub() as stub, open_fresh_store() as store:
        began = time.perf_counter()
        frame = make_prompts(PromptParams(n=n_samples // k), day=day)
        made = run_pipeline(store, frame, stub.base_url, params=PARAMS.model_copy(update={"k": k}))
        pairs = pair_completions(frame, made.frame, PairingParams(), day=day)
        seconds = time.perf_counter() - began
    a_day_s = n_samples / seconds * 86_400
    measured_ = f"{n_samples / seconds:.0f}/s, {len(pairs):,} comparisons, {a_day_s:,.0f} a day"
    table.print_row(
        f"{n_samples:,} samples, {cores}",
        "prompts to comparisons",
        measured_,
        "> 10,000 a day",
        passed=a_day_s > A_DAY,
    )


def local(table: LimitTable) -> None:
    """Greedy, on one core: a plain loop, ours one at a time (what sampling from seeds costs), and
    ours in batches.
    """
    prompts_ = [
        f"Prompt number {i}: name a river" + " and say where it ends" * (i % 4) for i in range(64)
    ]
    frame = make_bench_prompts(64).assign(text=prompts_)
    with tempfile.TemporaryDirectory() as folder, pin_to_cores(1) as cores:
        random_policy(Path(folder))
        backend = LocalBackend(Path(folder), "bench")
        backend.complete([])
        policy = load_policy(Path(folder))
        params = CompletionParams(k=1, temperatures=[0.0], top_ps=[1.0], max_new_tokens=48)
        texts: dict[str, list[str]] = {}
        speed: dict[str, float] = {}
        for name in ("plain", "one", "batched"):
            began = cpu_s()
            if name == "plain":
                texts[name], n_tokens = one_by_one(policy, prompts_, params.max_new_tokens)
            else:
                with open_fresh_store() as store:
                    made = ask_all(
                        frame,
                        [backend],
                        params.model_copy(update={"batch_size": 1 if name == "one" else 64}),
                        ledger=store.generation,
                    ).frame
                texts[name], n_tokens = made["text"].tolist(), int(made["n_tokens"].sum())
            speed[name] = n_tokens / (cpu_s() - began)
    where = (
        "local, 64 prompts of four lengths, 48 tokens, a random Llama of "
        f"{policy.model.num_parameters() / 1e6:.0f} M, {cores}"
    )
    table.print_row(where, "plain model.generate loop", f"{speed['plain']:.0f} tokens a CPU second")
    table.print_row(
        where,
        "ours, one prompt at a time",
        f"{speed['one']:.0f}, {speed['one'] / speed['plain']:.2f} times: our engine and sampling",
    )
    ratio = speed["batched"] / speed["plain"]
    told = (
        f"{speed['batched']:.0f}, {ratio:.1f} times, of which batching "
        f"{speed['batched'] / speed['one']:.1f}"
    )
    table.print_row(
        where, "ours, batched by length", told, f">= {LOCAL} times", passed=ratio >= LOCAL
    )
    same = sum(a == b == c for a, b, c in zip(*texts.values(), strict=True))
    table.print_row(
        where, "same texts under greedy decoding", f"{same} of 64", "64", passed=same == 64
    )
    ratio, same = in_bfloat16(policy, prompts_, params.max_new_tokens, speed["batched"])
    table.print_row(
        where,
        "in bfloat16, why it is not used",
        f"{ratio:.2f} times as fast, {same} of 64 texts as in a batch of one",
    )


def in_bfloat16(
    policy: Policy, prompts_: Sequence[str], max_new_tokens: int, speed: float
) -> tuple[float, int]:
    """How many times as fast as `speed`, and how many texts do not depend on their batch: what
    every completion is promised.
    """
    import torch

    policy.model.to(torch.bfloat16)
    how: dict[str, Any] = {
        "temperature": 0.0,
        "seeds": range(len(prompts_)),
        "max_new_tokens": max_new_tokens,
    }
    alone = policy.generate(prompts_, batch_size=1, **how)
    began = cpu_s()
    batched = policy.generate(prompts_, batch_size=len(prompts_), **how)
    tokens_a_s = sum(one.n_tokens for one in batched) / (cpu_s() - began)
    return tokens_a_s / speed, sum(a.text == b.text for a, b in zip(alone, batched, strict=True))


def one_by_one(
    policy: Policy, prompts_: Sequence[str], max_new_tokens: int
) -> tuple[list[str], int]:
    """What one writes without us; its texts and how many tokens they have."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=1, pad_token_id=0
    )
    texts, n = [], 0
    for text in prompts_:
        asked = policy.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            ids = policy.model.generate(
                input_ids=asked.input_ids,
                attention_mask=asked.attention_mask,
                generation_config=config,
            )
        new = ids[0, asked.input_ids.shape[1] :]
        n += len(new)
        texts.append(policy.decode_text(new))
    return texts, n


def random_policy(folder: Path) -> None:
    """A Llama from its configuration, with a vocabulary as small models have. Its weights are
    spread wide enough that a next token is as decided as a trained model's: near ties are decided
    on the row alone, which a model that knows nothing has at every step."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    symbols = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = Tokenizer(
        models.BPE(
            vocab={
                s: i
                for i, s in enumerate([*symbols, *(f"<{i}>" for i in range(8192 - len(symbols)))])
            },
            merges=[],
        )
    )
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _status(status: int, wait_ms: int | None, as_: str = "seconds") -> Fault:
    return Fault(
        kind="status",
        status=status,
        retry_after_ms=wait_ms,
        retry_after_as=as_,  # type: ignore[arg-type]
    )


def _spread(values: Sequence[float], digits: int = 0) -> str:
    """Median and range."""
    return (
        f"{statistics.median(values):.{digits}f} "
        f"({min(values):.{digits}f}-{max(values):.{digits}f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1000, help="of the rate and of each fault")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only",
        choices=[
            "rate",
            "faults",
            "refusals",
            "two_providers",
            "budget",
            "anthropic",
            "local",
            "day",
            "memory",
            "saving",
        ],
        help="one part",
    )
    asked = parser.parse_args()
    table = LimitTable()
    parts = {
        "rate": lambda: rate(table, asked.prompts, asked.repeats),
        "anthropic": lambda: anthropic(table, asked.prompts),
        "faults": lambda: faults(table, asked.prompts),
        "refusals": lambda: refusals(table, asked.prompts),
        "two_providers": lambda: two_providers(table, asked.prompts),
        "budget": lambda: budget(table),
        "saving": lambda: measure_saving(table, asked.prompts),
        "day": lambda: a_day(table, asked.prompts * 2),
        "memory": lambda: measure_memory(table, asked.prompts),
        "local": lambda: local(table),
    }
    for name, part in parts.items():
        if asked.only in (None, name):
            part()
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
