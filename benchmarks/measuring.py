"""What benchmarks share: seconds of wall and CPU by stage, tables in Markdown, verdicts. Knows nothing of what is measured."""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Spent:
    """Wall and CPU seconds of each stage, child processes included: others may be using this machine."""

    stages: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), _cpu()
        yield
        self.stages[name] = (time.perf_counter() - wall, _cpu() - cpu)

    @property
    def total(self) -> tuple[float, float]:
        walls, cpus = zip(*self.stages.values(), strict=True)
        return sum(walls), sum(cpus)


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    sys.stdout.flush()


def verdict(passed: bool, text: str) -> None:
    print(f"{'PASS' if passed else 'FAIL'}  {text}", flush=True)
