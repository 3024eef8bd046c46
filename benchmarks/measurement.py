"""What benchmarks share: seconds of wall and CPU by stage, cores, tables in Markdown, limits. Knows
nothing of what is measured.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rlhf_pipeline.store import Store


@dataclass
class StageTimes:
    """Wall and CPU seconds of each stage, child processes included: others may be using this
    machine.
    """

    stages: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), _cpu_seconds()
        yield
        self.stages[name] = (time.perf_counter() - wall, _cpu_seconds() - cpu)

    @property
    def total(self) -> tuple[float, float]:
        walls, cpus = zip(*self.stages.values(), strict=True)
        return sum(walls), sum(cpus)


@contextmanager
def open_fresh_store() -> Iterator[Store]:
    """An empty store, on SQLite, that ends with the block."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/store.db") as store,
    ):
        store.migrate()
        yield store


@contextmanager
def pin_to_cores(n: int) -> Iterator[str]:
    """This process, its threads and children on `n` of the cores it may use; the words for that.
    Where a system cannot, the words say so.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield f"all {os.cpu_count()} cores: this system pins no process"
        return
    import torch  # takes a thread for every core it finds when it is loaded

    may_use, threads = os.sched_getaffinity(0), torch.get_num_threads()
    pinned = set(sorted(may_use)[:n])
    _pin_threads(pinned)
    torch.set_num_threads(min(n, threads))
    try:
        yield "1 core" if len(pinned) == 1 else f"{len(pinned)} cores"
    finally:
        _pin_threads(may_use)
        torch.set_num_threads(threads)


def _pin_threads(cores: set[int]) -> None:
    """Every thread there is; those to come and children take after them."""
    for thread in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["0"]:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _cpu_seconds() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    sys.stdout.flush()


@dataclass
class Limits:
    """What a benchmark holds itself to. A limit is held, broken or not measured; none of these is
    ever taken for another.

    Every benchmark ends with `sys.exit(limits.print_summary())`.
    """

    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    def check(self, passed: bool, text: str) -> None:
        """One limit in a line of its own. NaN holds no limit: every comparison with it is false."""
        print(f"{self.count(passed, text)}  {text}", flush=True)

    def count(self, passed: bool, text: str) -> str:
        """Count a limit that the caller prints itself, as PASS or FAIL."""
        (self.held if passed else self.broken).append(text)
        return "PASS" if passed else "FAIL"

    def skip(self, text: str) -> None:
        """A limit that nothing was measured for, and why."""
        self.unmeasured.append(text)
        print(f"----  not measured: {text}", flush=True)

    def print_summary(self) -> int:
        """Says in the last lines how many limits were held and which were not; the exit code, 1
        where one is broken.
        """
        if not (self.held or self.broken or self.unmeasured):
            print("\nthis benchmark describes; it has no limits")
            return 0
        counts = {
            "held": len(self.held),
            "broken": len(self.broken),
            "not measured": len(self.unmeasured),
        }
        print("\nlimits: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n))
        for state, texts in (("broken", self.broken), ("not measured", self.unmeasured)):
            for text in texts:
                print(f"  {state}: {text}")
        sys.stdout.flush()
        return int(bool(self.broken))


class LimitTable:
    """Rows as they come, each with its limit."""

    def __init__(self) -> None:
        self.limits = Limits()
        print("| where | what | measured | limit | |\n|---|---|---|---|---|", flush=True)

    def print_row(
        self, where: str, what: str, measured: str, limit: str = "", *, passed: bool | None = None
    ) -> None:
        verdict = (
            ""
            if passed is None
            else self.limits.count(passed, f"{where}, {what}: {measured}, limit {limit}")
        )
        print(f"| {where} | {what} | {measured} | {limit} | {verdict} |", flush=True)
