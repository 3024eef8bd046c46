"""Processes that kill themselves with -9, forked from one that imported the application once."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    ["tests.processes.dying_run", "tests.processes.dying_verdict", "mlflow", "great_expectations"]
)


def expect_death(act: Callable[..., None], environ: Mapping[str, str], *arguments: Any) -> None:
    """Run `act` in a process with this environment; fails unless that process kills itself."""
    process = _FORKED.Process(target=_act, args=(act, dict(environ), arguments))
    process.start()
    process.join(300)
    exit_code = process.exitcode
    process.kill()  # one that hangs
    assert exit_code == -signal.SIGKILL


def _act(act: Callable[..., None], environ: dict[str, str], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    act(*arguments)
