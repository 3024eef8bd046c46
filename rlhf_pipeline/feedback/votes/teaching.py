"""Selects the votes that teach: those that preference pairs, and so reward models, are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import GATE_SOURCE, Adjudication, TriggerDecision
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_machine_votes, keep_rows


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
    all_decisions = list(decisions)
    lifted = {
        decision.answers for decision in all_decisions if decision.remedy == "lift_quarantine"
    }
    return [
        decision
        for decision in all_decisions
        if decision.action == "fire"
        and decision.remedy == "quarantine"
        and decision.decision_id not in lifted
    ]


@dataclass(frozen=True)
class TeachingRule:
    """What decisions leave out: the votes of quarantines, and those against an expert's choice
    (by comparison).
    """

    quarantines: Quarantines = NO_QUARANTINES
    decided: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, fires: Iterable[TriggerDecision], adjudications: Mapping[str, Adjudication]
    ) -> "TeachingRule":
        """By the fire decisions and by the standing decisions of experts."""
        decisions = {
            comparison_id: decision.choice for comparison_id, decision in adjudications.items()
        }
        return cls(Quarantines.from_decisions(fires), decisions)


class TeachingVotes(NamedTuple):
    """Rows of VOTES that teach, and how many were left out, by cause, in the order of the rule."""

    votes: pd.DataFrame
    n_quarantined: int
    n_overruled: int
    n_machine: int
    n_repeats: int
    n_flagged: int
    n_gate: int


def teaching_votes(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    rule: TeachingRule | None = None,
    *,
    with_machine_votes: bool = False,
) -> TeachingVotes:
    """The one rule of which votes of a log teach; `store.counting.is_teaching` is its SQL twin.

    A vote teaches if
    - no quarantine leaves it out;
    - among the votes that are left it is the last revision of its annotator's last pass over the
      comparison: no later vote stands in its place;
    - it agrees with the expert's decision on the comparison, where one stands. So a pair rests on
      the votes that agree with the expert; a decision that nobody's vote agrees with, or for a tie,
      gives no pair;
    - a person or a simulated annotator cast it, or a machine whose votes are asked for;
    - its comparison is neither a repeat, which measures self-consistency, nor flagged as one of
      identical or repeated completions, nor asked by the gate, whose prompts are for evaluation.

    Ties and skips are among them, because they stand where a vote for a side stood. Raises
    UnknownComparison for a vote whose comparison is not in `comparisons`, FrameError.
    """
    rule = rule or TeachingRule()
    comparisons = check_frame(comparisons, COMPARISONS)
    trusted = rule.quarantines.drop(votes)
    latest_votes = counting_votes(trusted)
    choice = latest_votes["comparison_id"].map(rule.decided)
    upheld = keep_rows(latest_votes, choice.isna() | (choice == latest_votes["choice"]))
    judgements = upheld if with_machine_votes else drop_machine_votes(upheld)
    _require_known(judgements, comparisons)
    repeats = comparisons.loc[comparisons["repeat_of"].notna(), "comparison_id"]
    is_repeat = judgements["repeat_of"].notna() | judgements["comparison_id"].isin(repeats)
    flagged = comparisons.loc[comparisons["flag"].notna(), "comparison_id"]
    is_flagged = ~is_repeat & judgements["comparison_id"].isin(flagged)
    sources = comparisons.get("source", pd.Series(index=comparisons.index, dtype="object"))
    of_gate = comparisons.loc[sources == GATE_SOURCE, "comparison_id"]
    is_gate = ~is_repeat & ~is_flagged & judgements["comparison_id"].isin(of_gate)
    return TeachingVotes(
        keep_rows(judgements, ~is_repeat & ~is_flagged & ~is_gate),
        n_quarantined=len(votes) - len(trusted),
        n_overruled=len(latest_votes) - len(upheld),
        n_machine=len(upheld) - len(judgements),
        n_repeats=int(is_repeat.sum()),
        n_flagged=int(is_flagged.sum()),
        n_gate=int(is_gate.sum()),
    )


def _require_known(votes: pd.DataFrame, comparisons: pd.DataFrame) -> None:
    unknown = votes.loc[~votes["comparison_id"].isin(comparisons["comparison_id"])]
    if not unknown.empty:
        row = unknown.iloc[0]
        raise UnknownComparison(
            f"Vote {row['vote_id']} is on comparison {row['comparison_id']}, which is not among "
            f"the {len(comparisons)} comparisons ({len(unknown)} such votes). Pass the "
            "comparisons of every day with these votes."
        )


def decide_labels(labels: pd.DataFrame, decided: Mapping[str, str | None]) -> pd.DataFrame:
    """SOFT_LABELS with the certainty of a decision for side a or b in place of the annotator
    model's probability, which rests on the overruled votes too.
    """
    decided_p = labels["comparison_id"].map(decided).map({"a": 1.0, "b": 0.0})
    certain = {name: decided_p.fillna(labels[name]) for name in ("p_a", "p_low", "p_high")}
    return labels.assign(**certain)
