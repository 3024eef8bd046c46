"""Finds the newest vote behind models that runs made, so that replayed days show their own dates.

A run has the clock of its machine; the votes that it read may be of other days.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import NamedTuple

from rlhf_pipeline.core.records import Promotion
from rlhf_pipeline.store import Store

POLICY = "policy.length"  # a figure of every day on which a policy wrote completions


class NewestVote(NamedTuple):
    """The day of the newest vote that a model may have learnt from; `is_replayed` where that vote
    arrived more than a day after it was cast, as imported and simulated votes do.
    """

    day: date
    is_replayed: bool


def find_vote_days(
    store: Store, project: str, moments: Iterable[datetime]
) -> dict[datetime, NewestVote]:
    """The newest vote that the champion reward model of each moment may have learnt from. Moments
    before the first reward model are left out.
    """
    history = store.promotions.history(f"{project}.reward_model")
    seqs: dict[datetime, int] = {}
    for moment in moments:
        data_seqs = [promotion.data_seq for promotion in history if promotion.promoted_at <= moment]
        if data_seqs and data_seqs[-1] is not None:
            seqs[moment] = data_seqs[-1]
    days = store.votes.days(seqs.values())
    return {
        moment: NewestVote(days[seq].cast, (days[seq].received - days[seq].cast).days > 1)
        for moment, seq in seqs.items()
        if seq in days
    }


def find_day(moment: datetime, newest: NewestVote | None) -> date:
    """The day of a run: of a replayed or simulated day that day, because the run has the clock of
    its machine.
    """
    return newest.day if newest is not None and newest.is_replayed else moment.date()


def find_votes_until(days: Mapping[datetime, NewestVote], moment: datetime) -> date | None:
    """The day of the newest vote behind a model of that moment; None before the first reward
    model.
    """
    return days[moment].day if moment in days else None


def find_promotion_day(days: Mapping[datetime, NewestVote], promotion: Promotion) -> date | None:
    """The day of the newest vote behind a promotion; None for a roll back, which no vote led to."""
    if promotion.previous_version is not None and promotion.version < promotion.previous_version:
        return None
    return find_votes_until(days, promotion.promoted_at)


def find_start(store: Store, project: str) -> date | None:
    """The first day of comparisons of a project whose votes are replayed: the day of the policy
    that was there before its first reward model. None in other projects, where the clock tells.
    """
    history = store.promotions.history(f"{project}.reward_model")
    days = find_vote_days(store, project, [promotion.promoted_at for promotion in history[:1]])
    first = store.comparisons.first_day()
    is_replayed = any(newest.is_replayed for newest in days.values())
    return date.fromisoformat(first) if first and is_replayed else None


def find_taste_changes(store: Store) -> dict[date, str]:
    """By the day of the first vote of the new taste, without false alarms."""
    changes = [change for change in store.taste_changes.all() if change.retracted_at is None]
    days = store.votes.days(change.change_seq for change in changes)
    words: dict[date, str] = {}
    for change in changes:
        if change.change_seq in days:
            of = f" in {change.category}" if change.category else ""
            words[days[change.change_seq].cast] = f"taste changed{of}"
    return words


def read_policies(store: Store, first: date, last: date) -> Mapping[date, str]:
    """The policy that wrote the completions of each day, as name@version."""
    points = store.metric_points.read([POLICY], since=first, until=last)
    return {point.day: point.labels["policy"] for point in points}
