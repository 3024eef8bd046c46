"""Workers that are this process."""

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from rlhf_pipeline.workers.base import Item, Result, name_item


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
