"""Ends a step process when its run's process dies, so that it does not work beside the retry."""

import multiprocessing
import os
import signal
import threading

from rlhf_pipeline.store.heartbeats import is_beating_here

_watched_runs: set[str] = set()


def is_step_process(run_id: str) -> bool:
    """Whether this process executes a step of a run that another process owns."""
    return multiprocessing.parent_process() is not None and not is_beating_here(run_id)


def end_with_run(run_id: str) -> None:
    """Kill this step process as soon as its run's process ends; does nothing in the run's own
    process.
    """
    if run_id in _watched_runs or not is_step_process(run_id):
        return
    _watched_runs.add(run_id)
    threading.Thread(target=_end_with_parent, daemon=True, name=f"watch-{run_id[:8]}").start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # checked before the thread is started
    parent.join()
    # no event is logged: the run has already ended
    os.kill(os.getpid(), signal.SIGKILL)
