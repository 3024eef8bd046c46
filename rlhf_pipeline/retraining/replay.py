"""Decides the whole history of a project again, tick by tick in vote order, with other conditions.

The votes, the events and the champions are those that were. What a different fire would
have changed (another champion, with other errors from then on) nobody knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.records import (
    DriftEvent,
    LeftToPeople,
    Promotion,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.retraining.triggers import TriggerParams, decide

Seqs = npt.NDArray[np.int64]
ONE_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True)
class TriggerTick:
    """A moment at which the trigger decides: the last vote that it knows, and the champion."""

    seq: int
    at: datetime
    champion: str | None


class TrainableVotes:
    """Counts the votes that may train, as the store does for the trigger."""

    def __init__(self, votes: pd.DataFrame) -> None:
        """`votes` as `DecisionHistory.votes` gives them."""
        self._seqs: Seqs = votes.loc[votes["is_trainable"], "seq"].to_numpy()
        replacing = votes[votes["replaced_seq"] > 0]
        self._replacing: Seqs = replacing["seq"].to_numpy()
        self._replaced: Seqs = replacing["replaced_seq"].to_numpy()

    def count(self, after: int, until: int) -> int:
        """Trainable votes above `after` and up to `until`, less those superseded by then."""
        low, high = np.searchsorted(self._seqs, [after, until], side="right")
        gone = (self._replacing <= until) & (self._replacing > after) & (self._replaced > after)
        return int(high - low - gone.sum())


@dataclass(frozen=True)
class History:
    """All that the trigger reads: ticks and events in vote order, votes, and how long a retraining
    keeps the next one waiting.
    """

    ticks: Sequence[TriggerTick]
    events: Sequence[DriftEvent]
    votes: TrainableVotes
    run_time: timedelta


def date_votes(votes: pd.DataFrame) -> pd.Series:
    """When the trigger could know each vote. A vote that came in later than a day after it was cast
    (imported, simulated) is known at the end of its day; no vote is known before an earlier one.
    """
    end = pd.to_datetime(votes["day"], utc=True) + ONE_DAY - pd.Timedelta(microseconds=1)
    late = votes["received_at"] - end > ONE_DAY
    return votes["received_at"].where(~late, end).cummax()


def list_ticks(
    votes: pd.DataFrame,
    promotions: Sequence[Promotion],
    decisions: Sequence[TriggerDecision] = (),
    *,
    votes_per_tick: int,
) -> list[TriggerTick]:
    """A tick at the last vote of each day, one after every `votes_per_tick` votes within a day on
    which votes came as they were cast, and one wherever a decision was stored.
    """
    at = date_votes(votes)
    day = at.dt.floor("D")
    in_day = votes.groupby(day)["seq"].cumcount() + 1
    as_cast = at == votes["received_at"]
    stored = _list_stored_champions(decisions)
    is_tick = (
        (day != day.shift(-1))
        | (as_cast & (in_day % votes_per_tick == 0))
        | votes["seq"].isin(list(stored))
    )
    starts = _date_champions(votes, promotions)
    labels = [promotion.label for promotion in promotions]
    ticks = []
    for seq, moment in zip(votes.loc[is_tick, "seq"], at[is_tick], strict=True):
        serving = int(np.searchsorted(starts, seq, side="right")) - 1
        champion = labels[serving] if serving >= 0 else None
        ticks += [
            TriggerTick(int(seq), moment.to_pydatetime(), each)
            for each in stored.get(seq, [champion])
        ]
    return ticks


def redecide(history: History, params: TriggerParams) -> list[TriggerDecision]:
    """Every decision that would be stored: at each tick with a new event, and each fire. People
    answer at once what is left to them, by nothing.
    """
    made: list[TriggerDecision] = []
    held: list[DriftEvent] = []
    fired: TriggerDecision | None = None
    left: LeftToPeople | None = None
    left_of: str | None = None
    n_read = 0
    for tick in history.ticks:
        start = n_read
        while n_read < len(history.events) and history.events[n_read].seq <= tick.seq:
            n_read += 1
        opened = history.events[start:n_read]
        own = [e for e in held if e.model_version == tick.champion]
        if not opened and not own:
            continue
        running = fired is not None and tick.at < fired.decided_at + history.run_time
        evidence = TriggerEvidence(
            champion=tick.champion,
            open_events=tuple(opened),
            held_events=tuple(own),  # a former champion's events never fire
            last_fired_at=None if fired is None else fired.decided_at,
            n_new_votes=history.votes.count(_last_seq(fired), tick.seq),
            max_seq=tick.seq,
            n_unfinished=int(running),
            left_to_people=left if left_of == tick.champion else None,
            now=tick.at,
        )
        decision = decide(evidence, params)
        if decision.action == "fire":
            fired, held, left = decision, [], None
        elif decision.remedy == "dismiss":
            held = [e for e in (*held, *opened) if e.event_id not in decision.event_ids]
        elif decision.remedy is not None:
            held, left_of = [], tick.champion
            left = LeftToPeople(decision_id=len(made) + 1, seq=tick.seq, is_answered=True)
        else:
            held += opened
        if opened or decision.action == "fire" or decision.remedy is not None:
            made.append(decision)
    return made


def known_seq(decision: TriggerDecision) -> int | None:
    """The last vote that the decision knew; None if it does not say."""
    seq = decision.evidence.get("looked_at", {}).get("max_seq")
    return seq if isinstance(seq, int) else None


def _list_stored_champions(decisions: Sequence[TriggerDecision]) -> dict[int, list[str | None]]:
    """The champions that the trigger's decisions name, by the last vote that each knew: several
    where one was promoted without a new vote.
    """
    champions: dict[int, list[str | None]] = {}
    for decision in decisions:
        seq = known_seq(decision)
        if seq is not None and decision.actor is None:
            named = champions.setdefault(seq, [])
            champion = decision.evidence["looked_at"].get("champion")
            named += [] if champion in named else [champion]
    return champions


def _last_seq(fired: TriggerDecision | None) -> int:
    return 0 if fired is None else known_seq(fired) or 0


def _date_champions(votes: pd.DataFrame, promotions: Sequence[Promotion]) -> list[int]:
    """The first vote that each champion could judge: the one after its training data. One that was
    promoted by hand (its data is older than the previous champion's) begins when it was promoted.
    """
    starts: list[int] = []
    for promotion in promotions:
        before = starts[-1] if starts else 0
        start = (promotion.data_seq or 0) + 1
        if start <= before:
            start = int((votes["received_at"] <= promotion.promoted_at).sum()) + 1
        starts.append(max(start, before))
    return starts
