"""Which step of which run this process executes, for the spans of its calls and its log lines.

One for the process and not one for each thread: the calls of a step are recorded by other threads.
No process executes two steps at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class RunningStep:
    """A step of a run of Dagster."""

    run_id: str
    key: str


_steps: list[RunningStep] = []


@contextmanager
def in_step(run_id: str, key: str) -> Iterator[None]:
    """Name the step that this process executes inside the block."""
    step = RunningStep(run_id, key)
    _steps.append(step)
    try:
        yield
    finally:
        _steps.remove(step)


def current_step() -> RunningStep | None:
    return _steps[-1] if _steps else None
