"""Reads lists of comparisons and clusters."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from pydantic import Field, computed_field

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import ComparisonFilter
from rlhf_pipeline.core.api_types.project import ComparisonOut
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, PromptCluster
from rlhf_pipeline.web.comparisons.identity import names_its_maker
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


class ClusterOut(PromptCluster):
    """A cluster of the prompts judged on a day, as `docs/guides/drift-report.md` explains."""

    day: date
    first_day: date = Field(description="The day on which it was first found.")
    model_version: str = Field(description="The reward model whose errors are counted.")
    noise_ceiling: Interval | None = Field(
        description="Accuracy that the day's votes allow; null if unknown."
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def n_prompts(self) -> int:
        return super().n_prompts


def comparisons(site: Site, _: Principal, only: ComparisonFilter) -> Page[ComparisonOut]:
    """Comparisons, newest day first. A cursor contains the last id."""
    place = _place_of(site, only.cursor)
    frame, following = site.store.comparisons.page(only, before=place)
    items = _build_comparisons(site, plain_rows(frame))
    return Page(items=items, next=make_cursor(following) if following else None)


def _place_of(site: Site, cursor: str | None) -> tuple[str, int, str] | None:
    """Position in the list of the comparison that a cursor names. Raises Problem 422."""
    place = parse_cursor(cursor, str)
    if place is None:
        return None
    rows = plain_rows(site.store.comparisons.with_ids(place))
    if not rows:
        raise cursor_problem()
    return rows[0]["day"], rows[0]["position"], rows[0]["comparison_id"]


def comparison(site: Site, comparison_id: str) -> ComparisonOut:
    """Raises Problem 404."""
    matches = read_comparisons(site, [comparison_id])
    if not matches:
        raise Problem(
            404, f"Comparison {comparison_id!r} does not exist in this project.", kind="not_found"
        )
    return matches[0]


def read_comparisons(site: Site, ids: Sequence[str]) -> list[ComparisonOut]:
    """Unknown ids are left out."""
    return _build_comparisons(site, plain_rows(site.store.comparisons.with_ids(ids)))


def _build_comparisons(site: Site, rows: list[dict[str, Any]]) -> list[ComparisonOut]:
    ids = [row["comparison_id"] for row in rows]
    texts, counts = site.store.comparisons.texts(ids), site.store.cards.count_wanted(ids)
    items = []
    for row in rows:
        n_wanted, n_done = counts.get(row["comparison_id"], (0, 0))
        names_maker = names_its_maker(texts[row["comparison_id"]])
        items.append(
            ComparisonOut(**row, names_maker=names_maker, n_wanted=n_wanted, n_done=n_done)
        )
    return items


def clusters(site: Site, day: date | None) -> Page[ClusterOut]:
    """The clusters of the day, by default of the last one with any."""
    days = site.files.report_days("clusters")
    chosen_days = [name for name in days if day is None or name == day.isoformat()][-1:]
    items = tuple(
        build_cluster(day_clusters, cluster)
        for day_clusters in site.files.read_reports("clusters", chosen_days, DayClusters).values()
        for cluster in day_clusters.clusters
    )
    return Page(items=items, next=None)


def build_cluster(of: DayClusters, cluster: PromptCluster) -> ClusterOut:
    return ClusterOut(
        **cluster.model_dump(),
        day=date.fromisoformat(of.day),
        first_day=date.fromisoformat(cluster.trend[0].day if cluster.trend else of.day),
        model_version=of.model_version,
        noise_ceiling=of.noise_ceiling,
    )
