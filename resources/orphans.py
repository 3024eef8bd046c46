"""A step ends with its run: when a run's process is killed, its step processes would work on beside
the retry. Knows processes only.
"""

import multiprocessing
import os
import signal
import threading

from rlhf_pipeline.store.heartbeats import is_beating_here

_watched_runs: set[str] = set()


def is_step_process(run_id: str) -> bool:
    """Whether this process executes one step for a run whose own process is another one."""
    return multiprocessing.parent_process() is not None and not is_beating_here(run_id)


def end_with_run(run_id: str) -> None:
    """From now on this step process dies as soon as its run's process is gone; nothing happens in a
    run's own process.
    """
    if run_id in _watched_runs or not is_step_process(run_id):
        return
    _watched_runs.add(run_id)
    threading.Thread(target=_end_with_parent, daemon=True, name=f"watch-{run_id[:8]}").start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # asked before the thread was started
    parent.join()
    # without a word to the event log: the run is already over for everybody else
    os.kill(os.getpid(), signal.SIGKILL)
