"""Reads the figures of one annotator by week from their votes, because no point holds them."""

from datetime import date, timedelta
from typing import Annotated

from pydantic import Field

from rlhf_pipeline.core.api_types.filters import DayFilter
from rlhf_pipeline.core.records import Text
from rlhf_pipeline.feedback.votes.annotators_over_time import annotators_over_time
from rlhf_pipeline.reports.annotator_weeks import FIGURES, chart_annotator_weeks
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.lists import plain_rows

WEEK = timedelta(days=7)
# votes of one annotator that charts read at most, with those of three others
MAX_VOTES = 1_500
# A smaller week says more about a few comparisons than about the annotator.
MIN_VOTES = 5


class AnnotatorFilter(DayFilter):
    """Which annotator, and which days."""

    annotator_id: Annotated[Text, Field(min_length=1, max_length=200)]


def draw_weeks(store: Store, figure: str, chosen: AnnotatorFilter) -> Chart:
    """The chart of that name in FIGURES, of the weeks that these days touch; without `since`, 90
    days up to the annotator's newest vote.
    """
    annotator_id = chosen.annotator_id
    first, last = chosen.resolve(max(store.votes.day_span(annotator_id), default=None))
    first = _find_monday(first)
    last = min(_find_monday(last), date.max - WEEK) + WEEK - timedelta(days=1)
    votes = store.votes.find_judged(annotator_id, first, last, limit=MAX_VOTES + 1)
    notes = []
    if len(votes) > MAX_VOTES:
        oldest, newest = (_find_monday(date.fromisoformat(votes[n].day)) for n in (-1, 0))
        first = min(oldest + WEEK, newest)
        votes = [vote for vote in votes if vote.day >= first.isoformat()]
        notes.append(
            f"earlier weeks are left out: these have nearly {MAX_VOTES:,} votes"
            if oldest < newest
            else f"of the week of {newest} the newest {len(votes):,} votes; earlier weeks "
            "are left out"
        )
    ids = {vote.comparison_id for vote in votes} | {
        vote.repeat_of for vote in votes if vote.repeat_of is not None
    }
    cast = store.votes.log(comparison_ids=sorted(ids), up_to_seq=store.votes.max_seq())
    # their own earlier votes too, which repeats are compared with
    cast = cast[
        (cast["annotator_id"] == annotator_id)
        | cast["day"].between(first.isoformat(), last.isoformat())
    ]
    figures = annotators_over_time(cast, store.comparisons.with_ids(sorted(ids)))
    own = figures[
        (figures["annotator_id"] == annotator_id)
        & figures["first_day"].between(first.isoformat(), last.isoformat())
    ]
    rows = plain_rows(own)
    if chosen.since is None and rows:
        first = date.fromisoformat(rows[0]["first_day"])
    return chart_annotator_weeks(
        FIGURES[figure], rows, first, last, least=MIN_VOTES, notes=tuple(notes)
    )


def _find_monday(day: date) -> date:
    return day - timedelta(days=day.weekday())
