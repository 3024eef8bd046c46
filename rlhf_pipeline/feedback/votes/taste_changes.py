"""The changes of taste that a fit takes into account, and which votes are older than them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.core.records import TasteChange


@dataclass(frozen=True)
class TasteChanges:
    """First vote seq of the current taste: `since_seq` in every category, `by_category` in single
    ones. The later of both applies.

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
        """The latest recorded change per scope that is not retracted.

        `up_to_seq` is the highest vote seq of the training data; later changes are ignored.
        `change_seq` is an additional change of every category, given for this fit only.
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

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> "TasteChanges":
        """What `to_json` wrote."""
        return cls(recorded.get("since_seq"), dict(recorded.get("by_category", {})))

    def __bool__(self) -> bool:
        return self.since_seq is not None or bool(self.by_category)

    @property
    def latest_seq(self) -> int | None:
        """Seq from which every vote is of the current taste; None without a change."""
        return max(
            (seq for seq in (self.since_seq, *self.by_category.values()) if seq is not None),
            default=None,
        )

    def first_seq(self, categories: "pd.Series[str]") -> npt.NDArray[np.int64]:
        """First vote seq of the current taste per category, (n,); 0 if taste never changed."""
        everywhere = self.since_seq or 0
        if not self.by_category:
            return np.full(len(categories), everywhere, dtype=np.int64)
        return np.array(
            [max(everywhere, self.by_category.get(category, 0)) for category in categories],
            dtype=np.int64,
        )

    def is_current(self, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Whether each pair has a vote of the current taste, (n,), from its columns `category` and
        `max_seq`.
        """
        if not self:
            return np.ones(len(rows), dtype=bool)
        return np.asarray(
            rows["max_seq"].to_numpy(dtype=np.int64) >= self.first_seq(rows["category"])
        )

    def to_json(self) -> dict[str, Any]:
        """JSON object for the record of a fit; empty without a change."""
        everywhere = {} if self.since_seq is None else {"since_seq": self.since_seq}
        return everywhere | ({"by_category": dict(self.by_category)} if self.by_category else {})


NO_CHANGES = TasteChanges()


BEFORE = "before the change: "


def separate_old_completions(
    comparisons: pd.DataFrame, votes: pd.DataFrame, changes: TasteChanges
) -> pd.DataFrame:
    """COMPARISONS in which comparisons without votes since the last change of their category have
    separate completion ids.

    The joint model gives a completion one utility in all its comparisons. After a change of taste,
    old comparisons would pull new ones toward the old taste. Annotators keep one reliability across
    the change. A comparison with votes on both sides of the change counts as new, with all its
    votes, as for pairs. Raises FrameError.
    """
    checked = check_frame(comparisons, COMPARISONS)
    if not changes:
        return checked
    last = check_frame(votes, VOTES).groupby("comparison_id")["seq"].max()
    is_old = checked["comparison_id"].map(last).fillna(0) < changes.first_seq(checked["category"])
    ids = {
        name: checked[name].mask(is_old, BEFORE + checked[name])
        for name in ("completion_a_id", "completion_b_id")
    }
    return check_frame(checked.assign(**ids), COMPARISONS)
