"""Interrupts a run within seconds after its decision is cancelled, in the run's own process."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import dagster as dg
import psutil

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store

POLL_S = 1.0
GRACE_S = 2.0  # after it, the processes of steps are killed: a job ends 5 s after its cancellation


@contextmanager
def stop_when_cancelled(
    store: Store,
    instance: dg.DagsterInstance,
    run_id: str,
    tags: Mapping[str, str],
    *,
    kills_children: bool = False,
) -> Iterator[threading.Event]:
    """Look for the cancellation of the decision in `tags` while the block runs, set the event and
    interrupt the main thread, as Dagster's own termination does. So it works on any machine that
    reaches the store. A run without a decision is not watched.
    """
    cancelled, ended = threading.Event(), threading.Event()
    lock = threading.Lock()  # a run that has ended is not interrupted
    decision_id = tags.get(DECISION_TAG)
    if decision_id is None:
        yield cancelled
        return

    def is_cancelled() -> bool:
        with suppress(StoreError):  # a locked database costs one look
            return store.training_jobs.find_cancellation(int(decision_id)) is not None
        return False

    def poll() -> None:
        while not ended.wait(POLL_S) and not is_cancelled():
            pass
        with lock:
            if ended.is_set():
                return
            with suppress(Exception):  # whatever the storage raises: the run must end
                run = instance.get_run_by_id(run_id)
                if run is not None and run.is_finished:
                    return
                if run is not None:
                    instance.report_run_canceling(run, "The training job was cancelled.")
            cancelled.set()
            os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(GRACE_S) and kills_children:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()

    thread = threading.Thread(target=poll, daemon=True, name=f"cancellation-{run_id[:8]}")
    thread.start()
    # A shell starts a background process with interrupts ignored.
    is_deaf = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    changes_handler = is_deaf and threading.current_thread() is threading.main_thread()
    if changes_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield cancelled
    finally:
        try:
            with lock:  # waits for an interruption, which may arrive here
                ended.set()
        finally:
            ended.set()
            thread.join()
            if changes_handler:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
