"""Computes an annotator's statistics: pace, agreement with repeats and with known answers."""

from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from statistics import median

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.votes import Confidence, GoldShare, Repeats, Statistics
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import Choice, Token, VoteDetails
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.judgements import (
    GoldCount,
    StandingJudgements,
    StandingSnapshot,
)
from rlhf_pipeline.web.annotate.cards import swap_side
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes.casting import swap_sides

PACE_OF = 200  # newest judgements used for the median time


def read_statistics(store: Store, annotator_id: str) -> Statistics:
    """Statistics of all standing judgements; hidden cards only of days before today."""
    today = store.database.clock.now().date()
    snapshot = StandingJudgements(store.database).snapshot_before(
        annotator_id, today, n_paces=PACE_OF
    )
    return build_statistics(snapshot, today)


def build_statistics(snapshot: StandingSnapshot, today: date) -> Statistics:
    """Build the API record."""
    paces = [*reversed(snapshot.today), *snapshot.paces][:PACE_OF]
    seconds = [pace for pace in paces if pace is not None]
    days = set(snapshot.by_day) | ({today} if snapshot.today else set())
    n_right = sum(count.n for count in snapshot.gold_counts if count.is_right)
    n_known = sum(count.n for count in snapshot.gold_counts)
    return Statistics(
        votes_today=len(snapshot.today),
        votes_total=sum(snapshot.by_day.values()) + len(snapshot.today),
        median_seconds=median(seconds) if seconds else None,
        days_in_a_row=_count_days_in_a_row(days, today),
        repeats=Repeats(
            agree=snapshot.n_same,
            n=snapshot.n_again,
            **_wilson_interval(snapshot.n_same, snapshot.n_again),
        ),
        gold=GoldShare(right=n_right, n=n_known, **_wilson_interval(n_right, n_known)),
        confidence=_count_by_confidence(snapshot.gold_counts),
    )


def _count_by_confidence(counts: Iterable[GoldCount]) -> list[Confidence]:
    n, right = Counter[float](), Counter[float]()
    for count in counts:
        if count.stated_confidence is not None:
            stated = round(count.stated_confidence, 1)
            n[stated] += count.n
            right[stated] += count.n if count.is_right else 0
    return [Confidence(stated=stated, n=n[stated], right=right[stated]) for stated in sorted(n)]


def _count_days_in_a_row(days: set[date], today: date) -> int:
    """Count consecutive days with votes up to today, or up to yesterday while today has none."""
    day = today if today in days else today - timedelta(days=1)
    n = 0
    while day in days:
        n, day = n + 1, day - timedelta(days=1)
    return n


def _wilson_interval(k: int, n: int) -> dict[str, float | None]:
    """Bounds of the Wilson interval of k of n; None if n is 0.

    >>> _wilson_interval(0, 0)
    {'low': None, 'high': None}
    """
    if n == 0:
        return {"low": None, "high": None}
    from rlhf_pipeline.core.intervals import (
        interval_of_share,
    )  # imports numpy, which `rlhf vote` does not need at start

    interval = interval_of_share(k / n, n)
    return {"low": interval.low, "high": interval.high}


class OwnVote(Answer):
    """One of your own votes as you cast it: a is the left side."""

    vote_id: str
    card_id: str | None
    choice: Choice
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    received_at: datetime
    supersedes: str | None
    is_superseded: bool
    details: VoteDetails | None


def own_votes(site: Site, annotator_id: str, *, cursor: str | None, limit: int) -> Page[OwnVote]:
    """Newest first, with sides as shown; no field reveals that two cards show the same
    comparison.
    """
    place = parse_cursor(cursor, int)
    votes = site.store.votes.page(
        annotator_id=annotator_id, before_seq=place[0] if place else None, limit=limit
    )
    items = [
        OwnVote.model_validate(
            vote.model_dump()
            | {
                "choice": swap_side(vote.choice, vote.is_swapped),
                "details": vote.details and swap_sides(vote.is_swapped, vote.details),
            }
        )
        for vote in votes
    ]
    return Page(items=items, next=make_cursor(votes[-1].seq) if len(votes) == limit else None)


def own_tokens(site: Site, user_id: str, *, cursor: str | None, limit: int) -> Page[Token]:
    """API tokens, newest first, including those that ended."""
    place = parse_cursor(cursor, str)
    try:
        tokens = site.store.tokens.of_user(
            user_id, kind="api", before=place[0] if place else None, limit=limit
        )
    except NotFound:
        raise cursor_problem() from None
    return Page(
        items=tokens, next=make_cursor(tokens[-1].token_id) if len(tokens) == limit else None
    )
