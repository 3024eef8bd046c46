"""An annotator's figures: pace, agreement with oneself and with known answers. Knows judgements; knows no route."""

from collections import Counter
from collections.abc import Iterable
from datetime import date, timedelta
from math import sqrt
from statistics import median

from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_lists import Judgement
from rlhf_pipeline.web.schemas import Confidence, GoldShare, Repeats, Statistics

PACE_OF = 200  # newest judgements whose median time is told
Z = 1.959964  # of a 95 % interval


def of_annotator(store: Store, annotator_id: str) -> Statistics:
    """Of the newest 20,000 judgements, of hidden cards those of days before today."""
    return counted(store.votes.judgements_of(annotator_id), store.database.clock.now().date())


def counted(judged: list[Judgement], today: date) -> Statistics:
    """`judged` newest first."""
    days = {one.day for one in judged}
    seconds = [one.duration_s for one in judged[:PACE_OF] if one.duration_s is not None]
    past = [one for one in judged if one.day < today]
    n_again, n_same = _repeats(past)
    known = [one for one in past if one.gold is not None and one.pass_no == 1]
    n_right = sum(one.choice == one.gold for one in known)
    return Statistics(
        votes_today=sum(one.day == today for one in judged),
        votes_total=len(judged),
        median_seconds=median(seconds) if seconds else None,
        days_in_a_row=_days_in_a_row(days, today),
        repeats=Repeats(agree=n_same, n=n_again, **_ends(n_same, n_again)),
        gold=GoldShare(right=n_right, n=len(known), **_ends(n_right, len(known))),
        confidence=_by_confidence(known),
    )


def _repeats(judged: Iterable[Judgement]) -> tuple[int, int]:
    """Second looks, and those that said the same as the first."""
    passes: dict[str, dict[int, str]] = {}
    for one in judged:
        passes.setdefault(one.comparison_id, {}).setdefault(one.pass_no, one.choice.value)
    pairs = [(looks[1], looks[2]) for looks in passes.values() if 1 in looks and 2 in looks]
    return len(pairs), sum(first == second for first, second in pairs)


def _by_confidence(known: Iterable[Judgement]) -> list[Confidence]:
    n, right = Counter[float](), Counter[float]()
    for one in known:
        if one.stated_confidence is not None:
            stated = round(one.stated_confidence, 1)
            n[stated] += 1
            right[stated] += one.choice == one.gold
    return [Confidence(stated=stated, n=n[stated], right=right[stated]) for stated in sorted(n)]


def _days_in_a_row(days: set[date], today: date) -> int:
    """Up to today, or up to yesterday while today has no vote yet."""
    day = today if today in days else today - timedelta(days=1)
    n = 0
    while day in days:
        n, day = n + 1, day - timedelta(days=1)
    return n


def _ends(k: int, n: int) -> dict[str, float | None]:
    """Wilson 1927.

    >>> _ends(0, 0)
    {'low': None, 'high': None}
    """
    if n == 0:
        return {"low": None, "high": None}
    share = k / n
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return {"low": max(0.0, middle - half), "high": min(1.0, middle + half)}
