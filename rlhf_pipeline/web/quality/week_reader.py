"""Reads the figures of one annotator by week, as `rlhf votes annotators --over-time` has them."""

import threading
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from rlhf_pipeline.reports.annotator_weeks import FIGURES, chart_annotator_weeks
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes.annotators_over_time import annotators_over_time
from rlhf_pipeline.web.charts import DayFilter
from rlhf_pipeline.web.memory_cache import ExpiringCache
from rlhf_pipeline.web.pagination import plain_rows

WEEK = timedelta(days=7)
# votes of one annotator that charts read at most, with those of three others in 0.3 s
MAX_VOTES = 1_500
# A smaller week says more about a few comparisons than about the annotator.
MIN_VOTES = 5
KEPT = 64  # answers


@dataclass(frozen=True)
class AnnotatorWeeks:
    """Rows of ANNOTATORS_OVER_TIME of one annotator from Monday `first` to Sunday `last`."""

    rows: list[dict[str, Any]]
    first: date
    last: date
    notes: tuple[str, ...] = ()


class WeekReader:
    """One per process. All charts of a page come from one reading."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._known = ExpiringCache[object, AnnotatorWeeks](KEPT)

    def draw(self, annotator_id: str, figure: str, days: DayFilter) -> Chart:
        """The chart of that name in FIGURES."""
        weeks = self.read(annotator_id, days)
        return chart_annotator_weeks(
            FIGURES[figure], weeks.rows, weeks.first, weeks.last, least=MIN_VOTES, notes=weeks.notes
        )

    def read(self, annotator_id: str, days: DayFilter) -> AnnotatorWeeks:
        """The weeks that these days touch, up to the newest vote; without `since`, 90 days up to
        the annotator's newest vote.
        """
        key = annotator_id, days, self._store.votes.max_seq()
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._read(annotator_id, days, key[-1])
                self._known.put(key, found)
            return found

    def _read(self, annotator_id: str, days: DayFilter, up_to_seq: int) -> AnnotatorWeeks:
        first, last = days.resolve(self._store.votes.newest_day_of(annotator_id))
        first = _find_monday(first)
        last = min(_find_monday(last), date.max - WEEK) + WEEK - timedelta(days=1)
        judged = self._store.votes.find_judged(annotator_id, first, last, limit=MAX_VOTES + 1)
        notes = []
        if len(judged) > MAX_VOTES:
            oldest, newest = (_find_monday(date.fromisoformat(judged[n].day)) for n in (-1, 0))
            first = min(oldest + WEEK, newest)
            judged = [one for one in judged if one.day >= first.isoformat()]
            notes.append(
                f"earlier weeks are left out: these have nearly {MAX_VOTES:,} votes"
                if oldest < newest
                else f"of the week of {newest} the newest {len(judged):,} votes; earlier weeks "
                "are left out"
            )
        ids = {one.comparison_id for one in judged} | {
            one.repeat_of for one in judged if one.repeat_of is not None
        }
        cast = self._store.votes.log(comparison_ids=sorted(ids), up_to_seq=up_to_seq)
        # their own earlier votes too, which repeats are compared with
        cast = cast[
            (cast["annotator_id"] == annotator_id)
            | cast["day"].between(first.isoformat(), last.isoformat())
        ]
        figures = annotators_over_time(cast, self._store.comparisons.with_ids(sorted(ids)))
        own = figures[
            (figures["annotator_id"] == annotator_id)
            & figures["first_day"].between(first.isoformat(), last.isoformat())
        ]
        rows = plain_rows(own)
        if days.since is None and rows:
            first = date.fromisoformat(rows[0]["first_day"])
        return AnnotatorWeeks(rows, first, last, tuple(notes))


def _find_monday(day: date) -> date:
    return day - timedelta(days=day.weekday())
