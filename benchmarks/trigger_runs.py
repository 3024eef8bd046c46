"""Runs detection, causes and decisions over a world's votes, tick by tick as the loop does."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.vote_worlds import VoteWorld, draw_reference
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import (
    RETRAINING_REMEDIES,
    CauseName,
    ChangeCauses,
    DriftEvent,
    LeftToPeople,
    Remedy,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.improve.retraining.triggers import (
    ASKING_REMEDIES,
    TriggerParams,
    decide,
    find_causes_of,
    is_left_to_people,
    is_miscalibration,
)
from rlhf_pipeline.learn.calibration import run_calibration_tests
from rlhf_pipeline.watch.drift.calibration_events import calibration_events
from rlhf_pipeline.watch.drift.causes import examine
from rlhf_pipeline.watch.drift.choice import DetectorChoice
from rlhf_pipeline.watch.drift.confirmation import find_confirming_events
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest
from rlhf_pipeline.watch.drift.stream import scan

VOTES_PER_TICK = 50  # RLHF_VOTES_PER_REQUEST
MODEL = "lab.reward_model@1"
# In a world 24 hours bring fewer votes than `min_new_votes`, so no cool-down is simulated.
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARAMS = TriggerParams()
DETECTORS = DetectorChoice()


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

    A retraining starts the stream of a new model, with a reference of its own; it errs as often as
    the model before. A refitted calibrator changes nothing, because it has seen few votes after the
    change, and people answer nothing that they are asked.
    """
    run = TriggerRun(votes, partial(draw_reference, world, seed))
    responses: list[Response] = []
    while (response := run.respond()) is not None:
        responses.append(response)
        if until is not None and response.retrains and response.confirmed_seq > until:
            break
    return responses


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

    def __init__(
        self,
        votes: pd.DataFrame,
        draw_known: Callable[[int], pd.DataFrame],
        *,
        tests_calibration: bool = True,
    ) -> None:
        """`draw_known` makes the reference of the model after so many retrainings. Calibration
        tests take most of the time and retrain nothing.
        """
        self._votes, self._draw_known = votes, draw_known
        self._tests_calibration = tests_calibration
        self._ticks = list_ticks(votes)
        self._n_retrained = 0
        self._fired = 0  # the last vote that the last fire knew
        self._answered = 0  # events up to this vote are answered
        self._left: tuple[LeftToPeople, ...] = ()
        self._events: list[DriftEvent] = []
        self._read(start=0)

    def respond(self) -> Response | None:
        """The next response, carried out; None if none comes."""
        waiting: Response | None = None
        for tick in [tick for tick in self._ticks if tick > self._answered]:
            events = {event.event_id: event for event in self._events if event.seq <= tick}
            own = [e for e in events.values() if not is_left_to_people(e, self._left, PARAMS)]
            confirming = find_confirming_events(own, PARAMS)
            if not confirming:
                continue
            # the loop examines all events; here only the one whose causes decide, or all where a
            # question that people were asked may keep it waiting
            of_test = [e for e in confirming if e.detector == SequentialTest.name]
            decisive = (of_test[:1] or confirming)[-1]
            votes = self._own_votes[self._own_votes["seq"] <= tick]
            for event in own if self._left else [decisive]:
                events[event.event_id] = examine(event, votes, self._reference)
            causes = find_causes_of([events[decisive.event_id]])
            decision = decide(
                TriggerEvidence(
                    champion=MODEL,
                    open_events=tuple(events.values()),
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
                claimed = {*decision.event_ids}
                self._events = [e for e in self._events if e.event_id not in claimed]
                waiting = None
                continue
            if self._left and not decision.evidence["confirmed"]:
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
        if decision.action == "fire":
            self._fired, self._left = tick, ()
        if decision.remedy in RETRAINING_REMEDIES:
            self._n_retrained += 1
            self._read(start=tick)
            return
        if decision.remedy in ASKING_REMEDIES:
            causes = decision.evidence.get("causes", {}).get("causes", [])
            question = LeftToPeople(
                decision_id=1,
                seq=tick,
                cause=causes[0]["name"] if causes else None,
                annotator_ids=decision.quarantine.annotator_ids if decision.quarantine else (),
            )
            self._left = (*self._left, question)
            claimed = {*decision.event_ids}
            self._events = [event for event in self._events if event.event_id not in claimed]
            return
        self._events = [event for event in self._events if event.seq > tick]

    def _read(self, start: int) -> None:
        """Let the detectors read the votes on the serving model, which begin after vote `start`,
        and test each of its days.
        """
        self._own_votes = self._votes[self._votes["seq"] > start]
        self._reference = self._draw_known(self._n_retrained)
        scanned = scan(
            self._own_votes, model_version=MODEL, params=DETECTORS, reference=self._reference
        )
        self._events = list(scanned.events)
        if self._tests_calibration:
            self._events += find_day_events(self._own_votes, self._ticks, MODEL)
        self._events.sort(key=lambda e: (e.seq, e.event_id))


def find_day_events(
    votes: pd.DataFrame, ticks: Sequence[int], model_version: str
) -> Iterator[DriftEvent]:
    """The events of the reports made at `ticks`, each on the votes of its day up to that seq."""
    seq, day = votes["seq"].to_numpy(), votes["day"].to_numpy()
    p, error = votes["p"].to_numpy(dtype=float), votes["error"].to_numpy(dtype=float)
    outcome = ((p > 0.5) != (error == 1)).astype(float)
    published = votes["published_id"].to_numpy(dtype=str)
    starts = {number: int(np.argmax(day == number)) for number in np.unique(day)}
    for end in np.unique(np.searchsorted(seq, ticks, side="right")).tolist():
        if not end:
            continue
        rows = slice(starts[day[end - 1]], end)
        try:
            tests = run_calibration_tests(p[rows], outcome[rows], published[rows])
        except NotEnoughData:
            continue
        if not all(test["passed"] for test in tests):
            of_day = votes.iloc[rows].assign(reward_model=model_version, is_error=error[rows])
            yield from calibration_events(of_day, tests, model_version=model_version)
