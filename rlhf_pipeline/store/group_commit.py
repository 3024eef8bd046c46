"""Records single votes of many threads in one transaction.

One transaction costs a wait on the disk, and a turn among the writing processes: eight threads of
one server would otherwise wait eight times behind every transaction of an import.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Sent = TypeVar("Sent")
Kept = TypeVar("Kept")


class GroupCommit(Generic[Sent, Kept]):
    """Call it with an item: the first thread that gets the turn records the items of all waiting
    threads.

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
