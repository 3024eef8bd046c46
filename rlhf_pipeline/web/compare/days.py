"""Compares two days: their figures, and the comparisons on which model and people disagreed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from rlhf_pipeline.api_types.compared_days import ComparedDay, ComparedDays, DayComparison
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.store.comparisons import Texts
from rlhf_pipeline.store.judged_comparisons import JudgedRow, read_judged
from rlhf_pipeline.store.vote_sums import VoteCell
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.compare.day_figures import (
    LENGTH,
    Points,
    compare_points,
    compare_preferences,
    find_verdict,
    read_points,
)
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.preferences.sums_reader import COUNTED
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

Which = Literal["earlier", "later", "both"]
VOTES_READ = 10_000  # of a day; an import may hold all its votes in one


@dataclass(frozen=True)
class DaysFilter:
    """Which comparisons are listed. `which`: of that day, or with `both` those on prompts of both
    days, one prompt after the other.
    """

    which: Which | None = None
    category: str | None = None
    q: str | None = None


@dataclass(frozen=True)
class _Day:
    """What is read of one day."""

    day: date
    rows: Sequence[JudgedRow]
    is_cut: bool
    points: Points
    by_category: dict[str, int]


def list_days(site: Site) -> list[date]:
    """Days with people's votes, the newest first."""
    found = site.preference_sums.read([COUNTED], ["day"], VoteCell()).by_measure.get(COUNTED, {})
    return sorted(date.fromisoformat(place[0]) for place in found if found[place].n > 0)[::-1]


def fill_in(
    known: Sequence[date], earlier: date | None, later: date | None
) -> tuple[date | None, date | None]:
    """The two days to compare: those given, the day with votes nearest to the one given, or the
    newest two of `known`, the days with votes, newest first. Without such a neighbour it is the
    given day itself, which `compare_days` refuses with a reason. None while no two days have votes.
    """
    if earlier is not None and later is not None:
        return earlier, later
    if len(known) < 2:
        return None, None
    if later is not None:
        return next((day for day in known if day < later), later), later
    if earlier is not None:
        return earlier, next((day for day in reversed(known) if day > earlier), earlier)
    return known[1], known[0]


def compare_days(
    site: Site,
    principal: Principal,
    days: tuple[date, date],
    chosen: DaysFilter,
    *,
    cursor: str | None = None,
    limit: int,
) -> ComparedDays:
    """Raises Problem 422 for days in the wrong order, 404 for a day without votes."""
    _check_days(site, days)
    start = _read_place(cursor)
    earlier, later = (_read_day(site, day) for day in days)
    shared = {row.prompt_id for row in earlier.rows} & {row.prompt_id for row in later.rows}
    rows = [(one.day, row) for one in (earlier, later) for row in one.rows]
    rows = [(day, row) for day, row in rows if _matches(day, row, days, chosen, shared)]
    may_read = principal.may(Permission.COMPARISONS_READ)
    if chosen.q is not None:
        rows = _search(site, rows, chosen.q) if may_read else []
    ordered = _order(rows, by_prompt=chosen.which == "both")
    shown = ordered[start : start + limit]
    ids = [row.comparison_id for _, row in shown]
    texts = site.store.comparisons.texts(ids) if may_read else {}
    may_see_figures = principal.may(Permission.METRICS_READ)
    head, newest = site.preference_sums.read([COUNTED], [], VoteCell()), site.store.votes.max_seq()
    return ComparedDays(
        items=tuple(
            _build_item(day, row, row.prompt_id in shared, texts.get(row.comparison_id))
            for day, row in shown
        ),
        next=make_cursor(start + limit) if start + limit < len(rows) else None,
        earlier=_describe_day(earlier),
        later=_describe_day(later),
        figures=(
            *compare_points(earlier.points, later.points),
            *compare_preferences(site, days),
        )
        if may_see_figures
        else (),
        n_rows=len(rows),
        n_shared_prompts=len(shared),
        n_not_counted=max(0, newest - head.seq),
    )


def _check_days(site: Site, days: tuple[date, date]) -> None:
    earlier, later = days
    if earlier >= later:
        raise Problem(
            422,
            f"earlier is {earlier}, not before later, {later}. "
            + ("Name two days." if earlier == later else "Exchange them."),
            kind="invalid",
            errors=[("query.later", "is not after earlier")],
        )
    known = list_days(site)
    for day in days:
        if day not in known:
            raise Problem(
                404,
                f"Nobody voted on {day}. "
                + (
                    f"Days with votes: {len(known)}, from {known[-1]} to {known[0]}."
                    if known
                    else "There are no votes yet."
                ),
                kind="not_found",
            )


def _read_day(site: Site, day: date) -> _Day:
    rows, is_cut = _read_rows(site, day)
    cell = VoteCell(since=day, until=day)
    found = site.preference_sums.read([COUNTED], ["category"], cell).by_measure.get(COUNTED, {})
    judged = {place[0]: round(sums.n - sums.total) for place, sums in found.items()}
    counted = {category: n for category, n in judged.items() if n > 0}
    largest_first = dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))
    return _Day(day, rows, is_cut, read_points(site, day), largest_first)


def _read_rows(site: Site, day: date) -> tuple[list[JudgedRow], bool]:
    """Kept for the next page and for other filters: a day may have thousands of votes."""
    key = day, site.store.votes.max_seq()
    found = site.judged_days.get(key)
    if found is None:
        found = read_judged(site.store.database, day.isoformat(), limit=VOTES_READ)
        site.judged_days.put(key, found)
    return found


def _describe_day(one: _Day) -> ComparedDay:
    policy = one.points.get(LENGTH)
    return ComparedDay(
        day=one.day,
        n_votes=sum(one.by_category.values()),
        n_comparisons=len(one.rows),
        by_category=one.by_category,
        reward_models=tuple(sorted({row.reward_model for row in one.rows if row.reward_model})),
        policy=None if policy is None else policy.labels["policy"],
        verdict=find_verdict(one.points),
        newest_only=one.is_cut,
    )


def _matches(
    day: date, row: JudgedRow, days: tuple[date, date], chosen: DaysFilter, shared: set[str]
) -> bool:
    if chosen.category is not None and row.category != chosen.category:
        return False
    if chosen.which == "both":
        return row.prompt_id in shared
    return chosen.which is None or day == days[chosen.which == "later"]


def _search(
    site: Site, rows: Sequence[tuple[date, JudgedRow]], words: str
) -> list[tuple[date, JudgedRow]]:
    """The comparisons whose prompt or completions contain the words, in any case."""
    texts = site.store.comparisons.texts([row.comparison_id for _, row in rows])
    wanted = words.casefold()

    def has_words(one: Texts) -> bool:
        return any(wanted in t.casefold() for t in (one.prompt, one.completion_a, one.completion_b))

    return [(day, row) for day, row in rows if has_words(texts[row.comparison_id])]


def _order(
    rows: Sequence[tuple[date, JudgedRow]], *, by_prompt: bool
) -> list[tuple[date, JudgedRow]]:
    """Largest disagreement first, unknown last; with more votes before fewer."""
    largest: dict[str, float] = {}
    keys: list[tuple[object, ...]] = []
    for day, row in rows:
        gap = measure_disagreement(row)
        known = -1.0 if gap is None else gap
        largest[row.prompt_id] = max(largest.get(row.prompt_id, -1.0), known)
        keys.append((-known, -(row.n_a + row.n_b), day, row.comparison_id))
    if by_prompt:
        keys = [
            (-largest[row.prompt_id], row.prompt_id, day, *own)
            for (day, row), own in zip(rows, keys, strict=True)
        ]
    return [one for _, one in sorted(zip(keys, rows, strict=True))]


def measure_disagreement(row: JudgedRow) -> float | None:
    """None without a vote for a side or a prediction."""
    n = row.n_a + row.n_b
    return None if n == 0 or row.p_a is None else abs(row.n_a / n - row.p_a)


def _build_item(day: date, row: JudgedRow, is_on_both: bool, texts: Texts | None) -> DayComparison:
    return DayComparison(
        day=day,
        **row._asdict(),
        is_on_both=is_on_both,
        disagreement=measure_disagreement(row),
        prompt=None if texts is None else texts.prompt,
        completion_a=None if texts is None else texts.completion_a,
        completion_b=None if texts is None else texts.completion_b,
    )


def _read_place(cursor: str | None) -> int:
    place = parse_cursor(cursor, int)
    if place is not None and place[0] < 0:
        raise cursor_problem()
    return 0 if place is None else int(place[0])
