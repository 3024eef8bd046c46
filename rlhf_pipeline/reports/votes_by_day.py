"""Builds the chart of votes by day."""

from collections.abc import Mapping
from datetime import date

from rlhf_pipeline.reports.chart import Axis, Chart, Panel, Series, day_axis, day_value, round_ticks

TITLE = "Votes by day"
NO_VOTES = "No votes on these days."


def chart_votes_by_day(
    counts: Mapping[date, int], first: date, last: date, *, links: bool = False
) -> Chart:
    """A bar for each day with votes, from the first of them within the days. With `links` a day
    leads to its votes.
    """
    n_by_day = {day: n for day, n in sorted(counts.items()) if n and first <= day <= last}
    if not n_by_day:
        return Chart(kind="votes-by-day", title=TITLE, alt=TITLE, panels=(), notes=(NO_VOTES,))
    first, most = min(n_by_day), max(n_by_day.values())
    bars = Series(
        style="bars",
        role="now",
        x=tuple(day_value(day) for day in n_by_day),
        y=tuple(float(n) for n in n_by_day.values()),
        n=tuple(n_by_day.values()),
        width=0.8,
        links=tuple(f"/votes?day={day}" for day in n_by_day) if links else (),
    )
    whole = tuple(tick for tick in round_ticks(0, most) if tick.value.is_integer())
    panel = Panel(
        x=day_axis(first, last),
        y=Axis(low=0, high=1.05 * most, label="votes", unit="votes", ticks=whole),
        height=130,
        series=(bars,),
    )
    alt = f"{TITLE}, from {first} to {last}"
    return Chart(kind="votes-by-day", title=TITLE, alt=alt, panels=(panel,))
