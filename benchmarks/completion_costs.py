"""What completions cost: memory, of a hundred times the prompts, and money, of the same workload
without us and with us.

Run by itself it is the other process of either: what is measured is measured in processes of their
own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import pandas as pd  # noqa: E402

from benchmarks.completion_calls import (  # noqa: E402
    PARAMS,
    PRICES,
    K,
    StubServer,
    make_bench_prompts,
    open_fresh_store,
    run_bare_loop,
    run_pipeline,
    serve_stub,
)
from benchmarks.measurement import LimitTable  # noqa: E402
from rlhf_pipeline.completions import TemplateBackend  # noqa: E402
from rlhf_pipeline.completions import generate as ask_all  # noqa: E402
from rlhf_pipeline.prompts import Report  # noqa: E402
from rlhf_pipeline.prompts.base import to_frame  # noqa: E402
from rlhf_pipeline.prompts.dataset import read_drafts  # noqa: E402
from rlhf_pipeline.prompts.rows import read_rows  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402

LEAST_SAVED_SHARE = 0.3  # of what the same workload costs without us
TIMES = 100  # the prompts
REFUSED_MARK = "7: name"  # of each ten prompts one
DAY, NEXT = "2026-01-01", "2026-01-02"
# a day, the rows of a file, and whether that is killed half-way and started again
Request = tuple[str, Sequence[str], bool]


@dataclass(frozen=True)
class RequestMethod:
    """How a file is asked for: cleaned of what stands twice or not; by a bare loop or by us, who
    want so many completions of a prompt.
    """

    name: str
    is_cleaned: bool
    least: int | None


METHODS = (
    RequestMethod("as one writes it", False, None),
    RequestMethod("de-duplication", True, None),
    RequestMethod("the cache", True, 1),
    RequestMethod("early filtering of pairs", True, 2),
)


def measure_memory(table: LimitTable, n_prompts: int) -> None:
    """Peaks of processes of their own: `n_prompts`, and a hundred times as many. Of a provider,
    which answers at once, one of each: it is the longest part of all, four minutes of two idle
    cores for a hundred thousand."""
    with serve_stub(latency_s=0.0) as stub:
        for backend, k, url in (("template", K, ""), ("a provider", 1, stub.base_url)):
            began, peaks = time.perf_counter(), list[int]()
            for n in (n_prompts, n_prompts * TIMES):
                held = json.dumps({"hold": n, "k": k, "url": url})
                peaks.append(
                    int(subprocess.check_output([sys.executable, __file__, held], text=True))
                )
                stub.reset()  # which keeps what it was asked
            limit = 1.3 * peaks[0] + 100
            where = (
                f"{n_prompts * TIMES:,} prompts x {k} instead of {n_prompts:,}, backend {backend}"
            )
            told = f"{peaks[1]} MB instead of {peaks[0]} MB, {time.perf_counter() - began:.0f} s"
            table.print_row(where, "peak RSS", told, f"<= {limit:.0f} MB", passed=peaks[1] <= limit)


def print_peak(n_prompts: int, k: int, url: str) -> None:
    """The other process: prints its peak in MB."""
    params = PARAMS.model_copy(update={"k": k})
    with open_fresh_store() as store:
        if url:
            run_pipeline(store, make_bench_prompts(n_prompts), url, params=params)
        else:
            ask_all(
                make_bench_prompts(n_prompts), [TemplateBackend()], params, ledger=store.generation
            )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def measure_saving(table: LimitTable, n_prompts: int) -> None:
    """A file with a fifth of its rows twice and a tenth of its prompts refused, k of each, in four
    workloads.

    Asked for once there is nothing for a cache to answer. The limit is that of a day of work, which
    asks again for the file it made grow, and of a run that is cut off: as one writes it, what was
    made before is paid again. On another day the cache answers nothing, by design: the same prompt
    then gets other completions, of other seeds. Of a refused prompt a second completion is paid
    that has no other to stand beside. Each saving is measured by runs that have the ones before it,
    too.
    """
    texts = [str(text) for text in make_bench_prompts(n_prompts * 6 // 5)["text"]]
    file = [*texts[: n_prompts - n_prompts // 5], *texts[: n_prompts // 5]]
    more = [*file, *texts[n_prompts:]]
    workloads: dict[str, tuple[list[Request], str | None]] = {
        "asked for once": ([(DAY, file, False)], "nothing is made that a cache could answer later"),
        "and, a fifth longer, once more that day": ([(DAY, file, False), (DAY, more, False)], None),
        "and once more the next day": (
            [(DAY, file, False), (NEXT, file, False)],
            "other completions, which no cache has",
        ),
        "killed (-9) half-way and started again": ([(DAY, file, True)], None),
    }
    with serve_stub(latency_s=0.01, refuses=REFUSED_MARK) as stub:
        for name, (asked, why_unlimited) in workloads.items():
            costs = [_measure_cost(stub, way, asked) for way in METHODS]
            less = 1 - costs[-1] / costs[0]
            parts = [
                f"{way.name} {(a - b) / costs[0]:.1%}"
                for way, a, b in zip(METHODS[1:], costs, costs[1:], strict=False)
            ]
            remark = (
                ""
                if why_unlimited is None
                else f"; {'below' if less < LEAST_SAVED_SHARE else 'above'} "
                f"{LEAST_SAVED_SHARE:.0%}: {why_unlimited}"
            )
            measured = (
                f"{costs[-1]:.4f} instead of {costs[0]:.4f}, {less:.1%} less "
                f"({', '.join(parts)}){remark}"
            )
            where = f"{n_prompts:,} rows, a fifth twice, a tenth refused, x {K}, {name}"
            limit, passed = (
                ("", None)
                if why_unlimited
                else (f">= {LEAST_SAVED_SHARE:.0%} less", less >= LEAST_SAVED_SHARE)
            )
            table.print_row(where, "billed by the STUB", measured, limit, passed=passed)


def _measure_cost(stub: StubServer, way: RequestMethod, asked: Sequence[Request]) -> float:
    """What a workload costs one way, by the STUB's counters."""
    with tempfile.TemporaryDirectory() as folder:
        for day, lines, is_killed in asked:
            frame = (
                _clean_file(Path(folder), lines, day)
                if way.is_cleaned
                else pd.DataFrame({"text": lines})
            )
            told = {
                "url": stub.base_url,
                "frame": f"{folder}/frame.parquet",
                "least": way.least,
                "store": f"sqlite:///{folder}/store.db",
            }
            frame.to_parquet(told["frame"])
            command = [sys.executable, __file__, json.dumps(told)]
            if is_killed:
                _run_and_kill(command, stub, len(frame) * K // 2)
            subprocess.run(command, check=True)
    counted = stub.read_counters()
    stub.reset()
    return (
        counted.n_prompt_tokens * PRICES["prompt_price"]
        + counted.n_tokens * PRICES["completion_price"]
    ) / 1e6


def _run_and_kill(command: Sequence[str], stub: StubServer, n_calls: int) -> None:
    """After so many calls."""
    process = subprocess.Popen(command)
    while stub.read_counters().n_calls < n_calls:
        assert process.poll() is None, "it ended before it was killed: give it more prompts"
        time.sleep(0.02)
    process.kill()
    process.wait()


def _clean_file(folder: Path, lines: Sequence[str], day: str) -> pd.DataFrame:
    """The rows of a file as prompts of a day, each once."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    drafts = read_drafts(read_rows(path), Report())
    return to_frame(
        [(draft.prompt_id, draft) for _, draft in drafts], source="dataset", day=day, seed=0
    )


def complete_once(url: str, frame: str, least: int | None, store: str) -> None:
    """The other process: all of a file, without us or with us."""
    asked = pd.read_parquet(frame)
    if least is None:
        run_bare_loop(url, asked)
        return
    with Store.open(store, organization="o", project="p") as kept:
        kept.migrate()
        run_pipeline(kept, asked, url, params=PARAMS.model_copy(update={"least_per_prompt": least}))


def _run_in_process(told: dict[str, Any]) -> None:
    if "hold" in told:
        print_peak(told["hold"], told["k"], told["url"])
    else:
        complete_once(**told)


if __name__ == "__main__":
    _run_in_process(json.loads(sys.argv[1]))
