"""Runs detection, causes and decision over a world's votes, tick by tick as in the loop."""

from datetime import UTC, datetime
from typing import NamedTuple

import pandas as pd

from rlhf_pipeline.drift.causes import examine, find_causes
from rlhf_pipeline.drift.confirmation import find_confirming_events
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.records import CauseName, ChangeCauses, Remedy, TriggerEvidence
from rlhf_pipeline.retraining.triggers import (
    TriggerParams,
    decide,
    find_causes_of,
    last_on_all_votes,
)

VOTES_PER_TICK = 50  # RLHF_VOTES_PER_REQUEST
UNNOTICED_VOTES = 300  # after which a changed calibration, which no detector reports, is examined


class ChangeAnswer(NamedTuple):
    """How the trigger answers a change: what it found and did, and at which votes."""

    causes: ChangeCauses
    remedy: Remedy | None  # None where the cause was asked for without a decision
    first: ChangeCauses  # found at the first tick after the confirmation
    confirmed_at: int
    decided_at: int

    @property
    def top(self) -> CauseName:
        return self.causes.causes[0].name


def answer_change(
    votes: pd.DataFrame, at: int, params: TriggerParams | None = None
) -> ChangeAnswer | None:
    """The first decision that answers the change after vote `at`; None if it is not noticed.

    Only the events that decide are examined for causes; the loop examines all.
    """
    params = params or TriggerParams()
    model = str(votes["reward_model"].iloc[0])
    events = [event for event in scan(votes, model_version=model).events if event.seq > at]
    last = int(votes["seq"].iloc[-1])
    first: tuple[int, ChangeCauses] | None = None
    for tick in range(-(-at // VOTES_PER_TICK) * VOTES_PER_TICK, last + 1, VOTES_PER_TICK):
        known = {event.event_id: event for event in events if event.seq <= tick}
        confirming = find_confirming_events(list(known.values()), params)
        examined = last_on_all_votes(confirming)
        if examined is None:
            continue
        known[examined.event_id] = examine(examined, votes[votes["seq"] <= tick])
        evidence = TriggerEvidence(
            champion=model,
            open_events=tuple(known.values()),
            held_events=(),
            last_fired_at=None,
            n_new_votes=tick,
            max_seq=tick,
            now=datetime(2026, 1, 1, tzinfo=UTC),
        )
        causes = find_causes_of([known[examined.event_id]], tick)
        assert causes is not None
        first = first or (tick, causes)
        decision = decide(evidence, params)
        if decision.remedy is not None:
            return ChangeAnswer(causes, decision.remedy, first[1], first[0], tick)
    return None


def examine_unnoticed(votes: pd.DataFrame, at: int) -> ChangeAnswer:
    """The causes of a change that raises no error rate, asked for some votes later."""
    until = at + UNNOTICED_VOTES
    causes = find_causes(votes[votes["seq"] <= until], at + 1)
    return ChangeAnswer(causes, None, causes, until, until)
