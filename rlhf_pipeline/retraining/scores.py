"""Scores the fires of a trigger against known changes: precision, delay, false fires."""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field

from rlhf_pipeline.records import Record

FAR = 2**62  # above any seq


class KnownChange(Record):
    """The first vote after a change that happened, and how that is known."""

    seq: int
    source: str


class TriggerScore(Record):
    """Fires against known changes, over `n_votes` votes."""

    n_fires: int
    n_changes: int
    n_votes: int
    found: dict[int, int] = Field(description="vote of each right fire -> vote of its change")

    @property
    def precision(self) -> float | None:
        """Share of the fires that are right; None without a fire."""
        return len(self.found) / self.n_fires if self.n_fires else None

    @property
    def delays(self) -> list[int]:
        """Votes from each change that was found to its fire, in vote order."""
        return [fire - change for fire, change in self.found.items()]

    @property
    def n_false(self) -> int:
        return self.n_fires - len(self.found)

    @property
    def false_per_1000_votes(self) -> float | None:
        return 1000 * self.n_false / self.n_votes if self.n_votes else None


def score_fires(
    fires: Sequence[int], changes: Sequence[KnownChange], *, n_votes: int, within: int
) -> TriggerScore:
    """`fires` are the votes at which a trigger fired. The first fire at most `within` votes after a
    change, and before the next one, is right; every other is false, a second one included.
    """
    starts = sorted({change.seq for change in changes})
    found = {}
    for start, following in pairwise([*starts, FAR]):
        until = min(following - 1, start + within)
        first = next((seq for seq in sorted(fires) if start <= seq <= until), None)
        if first is not None:
            found[first] = start
    return TriggerScore(n_fires=len(fires), n_changes=len(starts), n_votes=n_votes, found=found)
