"""Interrupts a run within seconds after its decision is cancelled, in the run's own process."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg
import psutil

from assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store

logger = logging.getLogger(__name__)
POLL_S = 1.0
GRACE_S = 2.0  # after it, the processes of steps are killed: a job ends 5 s after its cancellation


class CancellationWatch:
    """A thread that looks for the cancellation of one decision and then interrupts the main thread,
    as Dagster's own termination does. So it works on any machine that reaches the store.
    """

    def __init__(self, store: Store, instance: dg.DagsterInstance, run_id: str, decision_id: int):
        self.is_cancelled = False
        self._store = store
        self._instance = instance
        self._run_id = run_id
        self._decision_id = decision_id
        self._ended = threading.Event()
        self._lock = threading.Lock()  # a run that has ended is not interrupted

    @contextmanager
    def watch(self, *, kills_children: bool = False) -> Iterator[None]:
        thread = threading.Thread(
            target=self._poll,
            args=(kills_children,),
            daemon=True,
            name=f"cancellation-{self._run_id[:8]}",
        )
        thread.start()
        # A shell starts a background process with interrupts ignored.
        is_deaf = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        changes_handler = is_deaf and threading.current_thread() is threading.main_thread()
        if changes_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            try:
                with self._lock:  # waits for an interruption, which may arrive here
                    self._ended.set()
            finally:
                self._ended.set()
                thread.join()
                if changes_handler:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _poll(self, kills_children: bool) -> None:
        while not self._ended.wait(POLL_S):
            with suppress(StoreError):  # a locked database costs one look
                if self._store.training_jobs.find_cancellation(self._decision_id) is not None:
                    break
        else:
            return
        with self._lock:
            if self._ended.is_set():
                return
            try:
                run = self._instance.get_run_by_id(self._run_id)
                if run is not None and run.is_finished:
                    return
                if run is not None:
                    self._instance.report_run_canceling(run, "The training job was cancelled.")
            except Exception:  # noqa: BLE001  whatever the storage raises: the run must end
                logger.warning("Run %s is cancelled, but not shown as that.", self._run_id)
            self.is_cancelled = True
            os.kill(os.getpid(), signal.SIGINT)
        if not self._ended.wait(GRACE_S) and kills_children:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()


@contextmanager
def stop_when_cancelled(
    store: Store, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> Iterator[None]:
    """Watch over a run whose steps have processes of their own; a run without a decision is not
    watched.
    """
    decision_id = run.tags.get(DECISION_TAG)
    if decision_id is None:
        yield
        return
    watch = CancellationWatch(store, instance, run.run_id, int(decision_id))
    with watch.watch(kills_children=True):
        yield
