"""Workers that are processes of this machine, one per core."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ClassVar

from rlhf_pipeline.errors import WorkerKilled
from rlhf_pipeline.workers.base import Item, Result, name_item

AHEAD = 2  # items submitted per process, so that none waits for this process


class Processes:
    """As many processes as cores. They start anew (`forkserver`, or `spawn` where it is missing),
    so locks, threads and connections of this process do not reach them.
    """

    name: ClassVar[str] = "processes"

    def __init__(self, n_processes: int | None = None) -> None:
        self.n_processes = n_processes or os.cpu_count() or 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        known = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
        pool = ProcessPoolExecutor(self.n_processes, context, _end_with_parent)
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) >= AHEAD * self.n_processes:
                    yield _result_of(*waiting.popleft())
            while waiting:
                yield _result_of(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _result_of(item: Item, future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as cause:
        raise WorkerKilled(
            f"A worker process ended before the result of {item!r} arrived, for example because "
            "memory ran out. Run again, or with the workers `here`."
        ) from cause
    except Exception as error:
        name_item(error, item)
        raise


def _end_with_parent() -> None:
    """End at Ctrl-C without a traceback, and when the process that started this one is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in worker processes only

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()
