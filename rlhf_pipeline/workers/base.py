"""Defines the protocol of workers; the simplest are this process itself."""

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Apply a function to independent items; the class is instantiated without arguments.

    `map` yields the results in the order of the items, and the same ones however many work at once.
    `function`, items and results can be pickled. An error of the function ends the iterator: it is
    raised as it is, with a note that names the item. Raises WorkerKilled, naming the item, if the
    worker ends without a result. Leaving the iterator early ends the work.
    """

    name: ClassVar[str]

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]: ...


def name_item(error: BaseException, item: object) -> None:
    """Add the note that names the item."""
    error.add_note(f"It was raised for the item {item!r}.")


class Here:
    """One item after another, in this process."""

    name: ClassVar[str] = "here"

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        for item in items:
            try:
                result = function(item)
            except Exception as error:
                name_item(error, item)
                raise
            yield result
