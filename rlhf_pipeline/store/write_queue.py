"""Orders the writers of a database: waiting ones go before the next transaction of a long series.

SQLite's own waiting sleeps up to 100 ms between two tries, so a process that writes back to back
(an import, a run that publishes) wins every time and a page's vote waits for seconds. Postgres
queues fairly, but a vote of eight threads of one server then waits for eight transactions of the
series.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from rlhf_pipeline.errors import StoreError

LOOK_S = 0.002  # between two attempts of a waiting writer
FRESH_S = 0.03  # after the last attempt of any writer, for which others may follow
LONGEST_PAUSE_S = 0.2  # longest pause of a series, so that it ends however many writers wait


class WriteQueue:
    """The writers of one database: threads of this process wait for a lock, processes for the
    database's own.

    A waiting process touches `mark`, a file beside a SQLite database. It is a mark and not a lock:
    that of a process killed while waiting is stale at once.
    """

    def __init__(self, mark: Path | None, timeout_s: float, where: str):
        self.mark = mark
        self._timeout_s = timeout_s
        self._where = where
        self._lock = threading.Lock()
        self._patient = (
            threading.Lock()
        )  # held by the non-urgent thread that may take the next turn
        self._looked_at = 0.0  # time.monotonic of the last attempt by a thread of this process

    @contextmanager
    def hold_turn(self, *, urgent: bool = False) -> Iterator[None]:
        """Take this thread's turn in this process; an urgent one waits behind at most one of the
        others. Raises StoreError after the timeout.
        """
        deadline = time.monotonic() + self._timeout_s
        with ExitStack() as held:
            for lock in (self._lock,) if urgent else (self._patient, self._lock):
                self._acquire(lock, deadline)
                held.callback(lock.release)
            yield

    def _acquire(self, lock: threading.Lock, deadline: float) -> None:
        if lock.acquire(blocking=False):
            return
        self.note_waiter()
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StoreError(
                f"The store {self._where}: database is locked: another thread held the write lock "
                f"longer than {self._timeout_s:g} s. Let it finish, then try again; nothing of "
                "this transaction was kept."
            )

    def retry_until_begun(self, begin: Callable[[], bool]) -> bool:
        """Call `begin` every few milliseconds until it returns True; returns whether it did before
        the timeout.
        """
        deadline = time.monotonic() + self._timeout_s
        while not begin():
            if time.monotonic() > deadline:
                return False
            self.note_waiter()
            time.sleep(LOOK_S)
        return True

    def note_waiter(self) -> None:
        """Record that a writer tried and could not begin yet."""
        self._looked_at = time.monotonic()
        if self.mark is not None:
            with suppress(OSError):  # a full disk: then no writer goes first
                if not self.mark.exists():
                    self.mark.touch()
                os.utime(self.mark)

    def give_way(self, others_wait: Callable[[], bool] | None = None) -> None:
        """Return when no writer waits, or after the longest pause. Never called while holding a
        turn.

        `others_wait` asks a database that knows its queue.
        """
        deadline = time.monotonic() + LONGEST_PAUSE_S
        while time.monotonic() < deadline:
            if others_wait is not None and others_wait():
                self._looked_at = time.monotonic()
            if not self._has_recent_waiter():
                return
            time.sleep(LOOK_S)

    def _has_recent_waiter(self) -> bool:
        if time.monotonic() - self._looked_at < FRESH_S:
            return True
        if self.mark is None:
            return False
        try:
            return 0 <= time.time() - self.mark.stat().st_mtime < FRESH_S
        except OSError:
            return False


Sent = TypeVar("Sent")
Kept = TypeVar("Kept")


class GroupCommit(Generic[Sent, Kept]):
    """Call it with an item: the first thread that gets the turn records the items of all waiting
    threads.

    One transaction costs a wait on the disk, and a turn among the writing processes: eight threads
    of one server would otherwise wait eight times behind every transaction of an import.

    `record` writes all items in order in one transaction, or raises and keeps nothing. If it raises
    one of `refusals`, the items are recorded one by one, so that no item is refused because of
    another; any other error is raised for all of them.
    """

    def __init__(
        self,
        record: Callable[[Sequence[Sent]], list[Kept]],
        *,
        refusals: tuple[type[Exception], ...],
        most: int,
    ):
        self._record = record
        self._refusals = refusals
        self._most = most
        self._turn = threading.Lock()
        self._waiting: deque[tuple[Sent, Future[Kept]]] = deque()

    def __call__(self, sent: Sent) -> Kept:
        mine: Future[Kept] = Future()
        self._waiting.append((sent, mine))
        with self._turn:
            while not mine.done():
                self._answer_group(
                    [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                )
        return mine.result()

    def _answer_group(self, group: Sequence[tuple[Sent, Future[Kept]]]) -> None:
        """Resolve every future of the group, whatever happens: a thread whose future stays open
        would wait forever.
        """
        try:
            self._record_group(group)
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _record_group(self, group: Sequence[tuple[Sent, Future[Kept]]]) -> None:
        try:
            kept = self._record([sent for sent, _ in group])
        except self._refusals as refusal:
            if len(group) == 1:
                group[0][1].set_exception(refusal)
                return
            for one in group:
                self._record_group([one])
            return
        for (_, future), row in zip(group, kept, strict=True):
            future.set_result(row)
