"""Which votes speak of taste as it is today: the changes of taste that a fit takes into account."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.records import TasteChange


@dataclass(frozen=True)
class TasteChanges:
    """First vote seq of today's taste: `since_seq` in every category, `by_category` in single ones.
    The later of both counts.

    >>> changes = TasteChanges(100, {"poetry": 300})
    >>> changes.first_seq(pd.Series(["poetry", "facts"])).tolist()
    [300, 100]
    """

    since_seq: int | None = None
    by_category: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_log(
        cls,
        recorded: Iterable[TasteChange],
        *,
        up_to_seq: int | None = None,
        change_seq: int | None = None,
    ) -> "TasteChanges":
        """Of the recorded changes those that are not retracted, the latest of each scope.

        With `up_to_seq`, the highest vote that is learnt from, later changes are left out.
        `change_seq` is one more change, of every category, that was given for this fit alone.
        """
        latest: dict[str | None, int] = {} if change_seq is None else {None: change_seq}
        for change in recorded:
            if change.retracted_at is None and (
                up_to_seq is None or change.change_seq <= up_to_seq
            ):
                latest[change.category] = max(change.change_seq, latest.get(change.category, 0))
        return cls(
            latest.pop(None, None), {str(category): seq for category, seq in sorted(latest.items())}
        )

    def __bool__(self) -> bool:
        return self.since_seq is not None or bool(self.by_category)

    @property
    def latest_seq(self) -> int | None:
        """From this vote on, every vote is of today's taste; None without a change."""
        return max(
            (seq for seq in (self.since_seq, *self.by_category.values()) if seq is not None),
            default=None,
        )

    def first_seq(self, categories: "pd.Series[str]") -> npt.NDArray[np.int64]:
        """First vote seq of today's taste in each category, (n,); 0 where taste never changed."""
        everywhere = self.since_seq or 0
        if not self.by_category:
            return np.full(len(categories), everywhere, dtype=np.int64)
        return np.array(
            [max(everywhere, self.by_category.get(category, 0)) for category in categories],
            dtype=np.int64,
        )

    def is_current(self, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Whether each pair has a vote of today's taste, (n,), by its columns `category` and
        `max_seq`; True where taste never changed.
        """
        if not self:
            return np.ones(len(rows), dtype=bool)
        return np.asarray(
            rows["max_seq"].to_numpy(dtype=np.int64) >= self.first_seq(rows["category"])
        )

    def to_json(self) -> dict[str, Any]:
        """For the record of a fit; empty without a change."""
        everywhere = {} if self.since_seq is None else {"since_seq": self.since_seq}
        return everywhere | ({"by_category": dict(self.by_category)} if self.by_category else {})


NO_CHANGES = TasteChanges()
