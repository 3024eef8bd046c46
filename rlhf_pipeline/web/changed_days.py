"""Reads the days that charts mark: confirmed changes of taste, and the policy of each day."""

from collections.abc import Mapping
from datetime import date

from rlhf_pipeline.store import Store

POLICY = "policy.length"  # a figure of every day on which a policy wrote completions


def find_taste_changes(store: Store) -> dict[date, str]:
    """By the day of the first vote of the new taste, without false alarms."""
    changes = [one for one in store.taste_changes.all() if one.retracted_at is None]
    days = store.votes.days(one.change_seq for one in changes)
    words: dict[date, str] = {}
    for one in changes:
        if one.change_seq in days:
            of = f" in {one.category}" if one.category else ""
            words[days[one.change_seq].cast] = f"taste changed{of}"
    return words


def read_policies(store: Store, first: date, last: date) -> Mapping[date, str]:
    """The policy that wrote the completions of each day, as name@version."""
    points = store.metric_points.read([POLICY], since=first, until=last)
    return {point.day: point.labels["policy"] for point in points}
