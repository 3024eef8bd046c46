"""The quarantines that decisions began and nobody lifted, and the votes that they leave out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from rlhf_pipeline.records import TriggerDecision
from rlhf_pipeline.votes.counting import keep_rows


@dataclass(frozen=True)
class Quarantines:
    """By annotator the first vote seq that is left out; earlier votes stay.

    >>> Quarantines({"bob": 3}).drop(
    ...     pd.DataFrame({"annotator_id": ["bob", "ana", "bob"], "seq": [2, 3, 4]})
    ... )["seq"].tolist()
    [2, 3]
    """

    since: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_decisions(cls, decisions: Iterable[TriggerDecision]) -> "Quarantines":
        """The earliest vote counts where two quarantines name one annotator."""
        since: dict[str, int] = {}
        for decision in find_active_quarantines(decisions):
            assert decision.quarantine is not None
            for annotator in decision.quarantine.annotator_ids:
                first = decision.quarantine.from_seq
                since[annotator] = min(first, since.get(annotator, first))
        return cls(dict(sorted(since.items())))

    def __bool__(self) -> bool:
        return bool(self.since)

    def first_added(self, before: Mapping[str, int]) -> int | None:
        """The first vote left out now and not by `before`; None where `before` leaves out votes
        that count now.
        """
        if any(self.since.get(name, first + 1) > first for name, first in before.items()):
            return None
        added = [first for name, first in self.since.items() if before.get(name) != first]
        return min(added, default=None)

    def find(self, votes: pd.DataFrame) -> "pd.Series[bool]":
        """Which rows are left out, by their columns annotator_id and seq; a row without a vote
        is not.
        """
        first = votes["annotator_id"].map(dict(self.since)).astype("Float64")
        return (votes["seq"].astype("Float64") >= first).fillna(False).astype(bool)

    def drop(self, votes: pd.DataFrame) -> pd.DataFrame:
        """The rows that are not left out."""
        return keep_rows(votes, ~self.find(votes)) if self else votes


NO_QUARANTINES = Quarantines()


def find_active_quarantines(decisions: Iterable[TriggerDecision]) -> list[TriggerDecision]:
    """The decisions whose quarantine nobody has lifted."""
    known = list(decisions)
    lifted = {each.answers for each in known if each.remedy == "lift_quarantine"}
    return [
        each
        for each in known
        if each.action == "fire" and each.remedy == "quarantine" and each.decision_id not in lifted
    ]
