"""Finds the newest vote behind models that runs made, so that replayed days show their own dates.

A run has the clock of its machine; the votes that it read may be of other days.
"""

from collections.abc import Iterable
from datetime import date, datetime

from rlhf_pipeline.store import Store


def find_day(moment: datetime, votes_until: date | None) -> date:
    """The day of a run: of a replayed or simulated day that day, because the run has the clock of
    its machine.
    """
    is_replayed = votes_until is not None and (moment.date() - votes_until).days > 1
    return votes_until if is_replayed and votes_until else moment.date()


def find_vote_days(store: Store, project: str, moments: Iterable[datetime]) -> dict[datetime, date]:
    """The day of the newest vote that the champion reward model of each moment may have learnt
    from. Moments before the first reward model are left out.
    """
    history = store.promotions.history(f"{project}.reward_model")
    seqs: dict[datetime, int] = {}
    for moment in moments:
        known = [one.data_seq for one in history if one.promoted_at <= moment]
        if known and known[-1] is not None:
            seqs[moment] = known[-1]
    times = store.votes.times(seqs.values())
    return {moment: times[seq].date() for moment, seq in seqs.items() if seq in times}
