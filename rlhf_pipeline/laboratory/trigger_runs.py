"""Runs detection, causes and decisions over a world's votes, tick by tick as the loop does."""

from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhf_pipeline.drift.causes import examine
from rlhf_pipeline.drift.confirmation import DAY_STREAM, find_confirming_events
from rlhf_pipeline.drift.stream import measure_level, scan
from rlhf_pipeline.drift.vote_stream import mark_hasty_votes
from rlhf_pipeline.laboratory.day_events import average_errors, find_day_events
from rlhf_pipeline.records import (
    CauseName,
    ChangeCauses,
    DriftEvent,
    LeftToPeople,
    Remedy,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.retraining.triggers import (
    LIKELY_NOTHING,
    RETRAINING_REMEDIES,
    TriggerParams,
    chance_of_nothing,
    decide,
    find_causes_of,
    find_deadline,
    is_miscalibration,
    last_on_all_votes,
)
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_reference
from rlhf_pipeline.votes import NO_QUARANTINES, Quarantines

VOTES_PER_TICK = 50  # RLHF_VOTES_PER_REQUEST
CURRENT, EARLIER = "lab.reward_model@2", "lab.reward_model@1"
# In a world 24 hours bring fewer votes than `min_new_votes`, so no cool-down is simulated.
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARAMS = TriggerParams()


class Response(NamedTuple):
    """A change that detectors or calibration tests confirm, and what the trigger does about it."""

    confirmed_seq: int  # of the first tick that confirms it
    seq: int  # of the decision, or of the last tick
    decision: TriggerDecision | None  # None while the trigger waits or is on hold
    causes: ChangeCauses | None
    reports_rise: bool  # whether a detector is among what confirms the change

    @property
    def remedy(self) -> Remedy | None:
        return self.decision.remedy if self.decision else None

    @property
    def retrains(self) -> bool:
        return self.remedy in RETRAINING_REMEDIES

    @property
    def cause(self) -> CauseName:
        """The cause that is answered."""
        is_named = self.causes is not None and self.remedy != "refit_calibrator"
        return self.causes.causes[0].name if self.causes and is_named else "calibration"


def find_responses(
    world: VoteWorld, votes: pd.DataFrame, seed: int, *, until: int | None = None
) -> list[Response]:
    """All responses to a world's votes in their order, at the project's defaults; with `until`, up
    to the first retraining for a change confirmed after that vote. The last one may be undecided.

    A retraining starts the streams of a new model, with a reference of its own; it errs as often as
    the model before, and earlier votes only teach it rhythm and pace. A quarantine leaves votes
    out. A refitted calibrator changes nothing, because it has seen few votes after the change, and
    changes that wait for a person stay unanswered.
    """
    run = TriggerRun(world, votes, seed)
    found: list[Response] = []
    while (response := run.respond()) is not None:
        found.append(response)
        if until is not None and response.retrains and response.confirmed_seq > until:
            break
    return found


def describe_response(response: Response) -> str:
    """The remedy, or that none was decided, with its votes and the date of the change."""
    confirmed = f"confirmed at vote {response.confirmed_seq:,}"
    if response.decision is None:
        return f"{confirmed}, no decision by vote {response.seq:,}"
    dated = response.decision.change_seq
    return f"{confirmed}, {response.remedy} at vote {response.seq:,}" + (
        "" if dated is None else f", dated {dated:,}"
    )


def list_ticks(votes: pd.DataFrame) -> list[int]:
    """The votes after which a day is reported and the trigger decides: each VOTES_PER_TICK of a
    day, and its last one.
    """
    within = votes.groupby("day").cumcount() + 1
    is_tick = (within % VOTES_PER_TICK == 0) | (votes["day"] != votes["day"].shift(-1))
    ticks: list[int] = votes.loc[is_tick, "seq"].tolist()
    return ticks


class TriggerRun:
    """The votes of a world, and what the trigger has done about them so far."""

    def __init__(self, world: VoteWorld, votes: pd.DataFrame, seed: int) -> None:
        self._world, self._votes, self._seed = world, mark_hasty_votes(votes), seed
        self._ticks = list_ticks(votes)
        self._n_retrained = 0
        self._start = 0  # the last vote before the serving model's first
        self._fired = 0  # the last vote that the last fire knew
        self._answered = 0  # events up to this vote are answered
        self._left: LeftToPeople | None = None
        self._quarantines = NO_QUARANTINES
        self._events: list[DriftEvent] = []
        self._known: set[str] = set()  # answered events of the serving model
        self._read()

    def respond(self) -> Response | None:
        """The next response, carried out; None if none comes."""
        waiting: Response | None = None
        for tick in [tick for tick in self._ticks if tick > self._answered]:
            known = {event.event_id: event for event in self._events if event.seq <= tick}
            confirming = find_confirming_events(list(known.values()), PARAMS)
            if not confirming:
                continue
            causes = None
            # The loop examines all events; here only those whose causes decide.
            examined = [event for event in confirming if event.stream != DAY_STREAM]
            if (last := last_on_all_votes(examined)) is not None:
                votes = self._own_votes[self._own_votes["seq"] <= tick]
                known[last.event_id] = examine(last, votes, self._level)
                causes = find_causes_of([known[last.event_id]], tick)
                if causes is not None and chance_of_nothing(causes) > LIKELY_NOTHING:
                    others = [event for event in examined if event is not last]
                    is_due = tick >= find_deadline(confirming, PARAMS)
                    for event in others if is_due else ():
                        known[event.event_id] = examine(event, votes, self._level)
            decision = decide(
                TriggerEvidence(
                    champion=CURRENT,
                    open_events=tuple(known.values()),
                    held_events=(),
                    last_fired_at=None,
                    n_new_votes=tick - self._fired,
                    max_seq=tick,
                    left_to_people=self._left,
                    now=NOW,
                ),
                PARAMS,
            )
            if decision.remedy == "dismiss":
                self._known |= set(decision.event_ids)
                self._events = [e for e in self._events if e.event_id not in self._known]
                waiting = None
                continue
            first = waiting or Response(tick, tick, None, causes, not is_miscalibration(confirming))
            if decision.remedy is not None:
                self._carry_out(decision, tick)
                return first._replace(seq=tick, decision=decision, causes=causes)
            waiting = first._replace(seq=tick, causes=causes)
        self._answered = self._ticks[-1]
        return waiting

    def _carry_out(self, decision: TriggerDecision, tick: int) -> None:
        self._answered = tick
        self._known |= {event.event_id for event in self._events if event.seq <= tick}
        self._left = None
        if decision.action == "fire":
            self._fired = tick
        else:
            self._left = LeftToPeople(decision_id=0, seq=tick, is_answered=True)
        if decision.remedy in RETRAINING_REMEDIES:
            self._start = tick
            self._n_retrained += 1
            self._known = set()
            self._read()
        elif decision.quarantine is not None and decision.action == "fire":
            first = decision.quarantine.from_seq
            added = dict.fromkeys(decision.quarantine.annotator_ids, first)
            self._quarantines = Quarantines(added | dict(self._quarantines.since))
            self._read(since=first)
        else:
            self._events = [event for event in self._events if event.seq > tick]

    def _read(self, since: int = 0) -> None:
        """Let the detectors read the votes on the serving model, and test each of its days. What
        they find up to vote `since` is known already.
        """
        model = np.where(self._votes["seq"] > self._start, CURRENT, EARLIER)
        votes = self._votes.assign(reward_model=model)
        drawn = draw_reference(self._world, self._seed, self._n_retrained)
        reference = average_errors(drawn)
        p = drawn.drop_duplicates("published_id")["p"]
        self._level = measure_level(pd.Series(reference), p)
        found = scan(
            votes,
            model_version=CURRENT,
            reference=self._level,
            quarantines=self._quarantines,
        )
        self._own_votes = self._quarantines.drop(votes)
        own = self._own_votes[self._own_votes["seq"] > self._start]
        of_days = find_day_events(own, reference, self._ticks, CURRENT)
        new = [event for event in found.events if event.seq >= since]
        new += [event for event in of_days if event.seq > self._answered]
        fresh = [event for event in new if event.event_id not in self._known]
        self._events = sorted(fresh, key=lambda event: (event.seq, event.event_id))
