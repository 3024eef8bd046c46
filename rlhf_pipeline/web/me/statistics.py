"""Computes an annotator's statistics: pace, agreement with repeats and with known answers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, timedelta
from statistics import median

from rlhf_pipeline.api_types.votes import Confidence, GoldShare, Repeats, Statistics
from rlhf_pipeline.records import Choice, Vote
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.judgements import (
    GoldCount,
    StandingJudgements,
    StandingSnapshot,
)
from rlhf_pipeline.web.memory_cache import ExpiringCache

PACE_OF = 200  # newest judgements used for the median time
MAX_CACHED_ANNOTATORS = 1000


class AnnotatorStatistics:
    """Counts days before today once and reads only the new votes of today."""

    def __init__(self, store: Store):
        self._store = store
        self._judgements = StandingJudgements(store.database)
        self._at_hand = ExpiringCache[str, tuple[date, StandingSnapshot]](MAX_CACHED_ANNOTATORS)

    def for_annotator(self, annotator_id: str) -> Statistics:
        """Statistics of all standing judgements; hidden cards only of days before today."""
        today = self._store.database.clock.now().date()
        at_hand = self._at_hand.get(annotator_id)
        judged = None
        if at_hand is not None and at_hand[0] == today:
            judged = apply_votes(
                at_hand[1], self._judgements.votes_since(annotator_id, at_hand[1].seq), today
            )
        if judged is None:
            judged = self._judgements.snapshot_before(annotator_id, today, n_paces=PACE_OF)
        self._at_hand.put(annotator_id, (today, judged))
        return build_statistics(judged, today)


def apply_votes(
    judged: StandingSnapshot, cast: Sequence[Vote], today: date
) -> StandingSnapshot | None:
    """The counts after further votes; None if they change an earlier day, which needs a recount."""
    if not cast:
        return judged
    standing, skips = dict(judged.today), set(judged.skips)
    for vote in cast:
        if vote.day < today or not (
            vote.supersedes is None or vote.supersedes in standing or vote.supersedes in skips
        ):
            return None
        standing.pop(vote.supersedes or "", None)
        if vote.choice == Choice.SKIP:
            skips.add(vote.vote_id)
        else:
            standing[vote.vote_id] = vote.duration_s
    return replace(judged, seq=cast[-1].seq, today=standing, skips=frozenset(skips))


def build_statistics(judged: StandingSnapshot, today: date) -> Statistics:
    """Build the API record."""
    paces = [*reversed(judged.today.values()), *judged.paces][:PACE_OF]
    seconds = [pace for pace in paces if pace is not None]
    days = set(judged.by_day) | ({today} if judged.today else set())
    n_right = sum(one.n for one in judged.known if one.is_right)
    n_known = sum(one.n for one in judged.known)
    return Statistics(
        votes_today=len(judged.today),
        votes_total=sum(judged.by_day.values()) + len(judged.today),
        median_seconds=median(seconds) if seconds else None,
        days_in_a_row=_count_days_in_a_row(days, today),
        repeats=Repeats(
            agree=judged.n_same, n=judged.n_again, **_wilson_interval(judged.n_same, judged.n_again)
        ),
        gold=GoldShare(right=n_right, n=n_known, **_wilson_interval(n_right, n_known)),
        confidence=_count_by_confidence(judged.known),
    )


def _count_by_confidence(known: Iterable[GoldCount]) -> list[Confidence]:
    n, right = Counter[float](), Counter[float]()
    for one in known:
        if one.stated_confidence is not None:
            stated = round(one.stated_confidence, 1)
            n[stated] += one.n
            right[stated] += one.n if one.is_right else 0
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
    from rlhf_pipeline.intervals import (
        interval_of_share,
    )  # imports numpy, which `rlhf vote` does not need at start

    interval = interval_of_share(k / n, n)
    return {"low": interval.low, "high": interval.high}
