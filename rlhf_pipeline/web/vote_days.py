"""Finds the newest vote behind models that runs made, so that replayed days show their own dates.

A run has the clock of its machine; the votes that it read may be of other days.
"""

from collections.abc import Iterable
from datetime import date, datetime

from rlhf_pipeline.store import Store


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
