"""Lists comparisons as their readers may see them."""

from datetime import date
from typing import Any

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import ClusterOut, ComparisonOut
from rlhf_pipeline.records import DayClusters, PromptCluster
from rlhf_pipeline.store.comparison_lists import ComparisonFilter
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import (
    blind_reader_id,
    filter_unjudged,
    hides_answers,
    refuse_blind,
)
from rlhf_pipeline.web.comparisons.identity import names_its_maker
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

ANSWERS = ("model_version_a", "model_version_b", "gold")


# many judgements, or a card on a comparison that was never offered, reveal a known answer
SLOTS = ("n_slots", "n_done")


def comparisons(
    site: Site, principal: Principal, only: ComparisonFilter, *, cursor: str | None, limit: int
) -> Page[ComparisonOut]:
    """Comparisons, newest day first. By category, source or annotator, those whose kind is hidden
    from the reader are left out, also from `next`. Raises Problem 403 for a blind reader who asks
    for a status, which may reveal a known answer.

    A cursor contains the last id, because the position of a correction would reveal it.
    """
    if only.status is not None:
        refuse_blind(principal, "whether a comparison waits for judgements")
    place = _place_of(site, cursor)
    hides_some = is_by_kind(only)
    found, following = site.store.comparisons.page(
        only,
        before=place,
        judged_by=blind_reader_id(principal) if hides_some else None,
        limit=limit,
    )
    rows = plain_rows(found)
    if hides_some:
        hidden = filter_unjudged(site, principal, [row["comparison_id"] for row in rows])
        rows = [row for row in rows if row["comparison_id"] not in hidden]
    items = _build_comparisons(site, principal, rows)
    return Page(items=items, next=make_cursor(following) if following else None)


def is_by_kind(only: ComparisonFilter) -> bool:
    """Whether a blind reader gets only comparisons that they have judged."""
    return any((only.category, only.source, only.annotator_id))


def _place_of(site: Site, cursor: str | None) -> tuple[str, int, str] | None:
    """Position in the list of the comparison that a cursor names. Raises Problem 422."""
    place = parse_cursor(cursor, str)
    if place is None:
        return None
    rows = plain_rows(site.store.comparisons.with_ids(place))
    if not rows:
        raise cursor_problem()
    return rows[0]["day"], rows[0]["position"], rows[0]["comparison_id"]


def comparison(site: Site, principal: Principal, comparison_id: str) -> ComparisonOut:
    """Raises Problem 404."""
    rows = plain_rows(site.store.comparisons.with_ids([comparison_id]))
    if not rows:
        raise Problem(
            404, f"Comparison {comparison_id!r} does not exist in this project.", kind="not_found"
        )
    return _build_comparisons(site, principal, rows)[0]


def _build_comparisons(
    site: Site, principal: Principal, rows: list[dict[str, Any]]
) -> list[ComparisonOut]:
    ids = [row["comparison_id"] for row in rows]
    texts, slots = site.store.comparisons.texts(ids), site.store.assignments.count_slots(ids)
    hidden: dict[str, None] = dict.fromkeys(ANSWERS) if hides_answers(principal) else {}
    if blind_reader_id(principal) is not None:
        hidden |= dict.fromkeys(SLOTS)
    # Each field would reveal which comparison is a correction, and so its preferred text.
    unsorted = filter_unjudged(site, principal, ids)
    untold = {"source": None, "category": None, "prompt_id": None}
    found = []
    for row in rows:
        n_slots, n_done = slots.get(row["comparison_id"], (0, 0))
        more = {
            "names_maker": names_its_maker(texts[row["comparison_id"]]),
            "n_slots": n_slots,
            "n_done": n_done,
            **hidden,
        }
        more |= untold if row["comparison_id"] in unsorted else {}
        found.append(
            ComparisonOut.model_validate(
                {
                    name: more[name] if name in more else row[name]
                    for name in ComparisonOut.model_fields
                }
            )
        )
    return found


def clusters(site: Site, day: date | None) -> Page[ClusterOut]:
    """The clusters of the day, by default of the last one with any."""
    days = site.files.cluster_days()
    wanted = [one for one in days if day is None or one == day.isoformat()][-1:]
    items = tuple(
        build_cluster(found, one)
        for found in site.files.read_clusters(wanted).values()
        for one in found.clusters
    )
    return Page(items=items, next=None)


def build_cluster(of: DayClusters, one: PromptCluster) -> ClusterOut:
    return ClusterOut(
        cluster_id=one.cluster_id,
        name=one.name,
        day=date.fromisoformat(of.day),
        first_day=date.fromisoformat(one.trend[0].day if one.trend else of.day),
        model_version=of.model_version,
        n_prompts=one.n_prompts,
        error=one.error_current.value if one.error_current else None,
        error_low=one.error_current.low if one.error_current else None,
        error_high=one.error_current.high if one.error_current else None,
        noise_ceiling=of.noise_ceiling.value if of.noise_ceiling else None,
        noise_ceiling_low=of.noise_ceiling.low if of.noise_ceiling else None,
        noise_ceiling_high=of.noise_ceiling.high if of.noise_ceiling else None,
        lift=one.lift.value if one.lift else None,
        lift_low=one.lift.low if one.lift else None,
        lift_high=one.lift.high if one.lift else None,
        is_failing=one.is_failing,
        is_worse=one.is_worse,
        change=one.change,
        examples=one.examples,
        comparison_ids=one.comparison_ids,
        trend=one.trend,
    )
