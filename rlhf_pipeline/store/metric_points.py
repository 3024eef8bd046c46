"""Metric points by day, name and labels: what assets, sensors and applications measured."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import batches, json_of
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import metric_points

KEY = ("day", "name", "labels")
FIELDS = tuple(MetricPoint.model_fields)
COLUMNS = tuple(metric_points.c[name] for name in FIELDS)
Place = tuple[str, str, str]  # of a point in lists: its key


class MetricPoints(Repository):
    """One row per day, name and labels."""

    def put(self, points: Sequence[MetricPoint], *, actor: str | None = None) -> None:
        """Store the points; an earlier one of the same day, name and labels is replaced. With an
        actor, who sent figures that nothing here can compute anew, they are a link of the audit
        chain.

        Raises InvalidScores for NaN or infinity.
        """
        for batch in batches({_key(p): p for p in points}.values(), MAX_ROWS):
            with audited_transaction(self._database) as (connection, ledger):
                self._put(connection, batch)
                if actor is not None:
                    ledger.append(
                        actor=actor,
                        action="metrics.send",
                        object_id=f"{len(batch)} points",
                        digest=content_hash([point.model_dump(mode="json") for point in batch]),
                    )

    def replace(
        self, names: Sequence[str], days: Sequence[date], points: Sequence[MetricPoint]
    ) -> None:
        """Store the points as all there are of these names on these days: an earlier one with
        other labels, such as of another model, is removed.
        """
        for day in days:
            old = (metric_points.c.name.in_(names), metric_points.c.day == day.isoformat())
            with self._database.write_transaction() as connection:
                connection.execute(metric_points.delete().where(*old))
                self._put(connection, [p for p in points if p.day == day and p.name in names])

    def read(
        self,
        names: Sequence[str],
        *,
        since: date | None = None,
        until: date | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[MetricPoint]:
        """Points of these names by day, name and labels; with `labels`, only points that carry all
        of them.
        """
        columns = metric_points.c
        query = (
            select(*COLUMNS)
            .where(*self._among(names, since, until, labels))
            .order_by(columns.day, columns.name, columns.labels)
        )
        return [_build_point(row) for row in self._database.fetch_all(query)]

    def page(
        self,
        names: Sequence[str],
        *,
        since: date | None = None,
        until: date | None = None,
        labels: Mapping[str, str] | None = None,
        after: Place | None = None,
        limit: int,
    ) -> tuple[list[MetricPoint], Place | None]:
        """`read`, the newest day first: at most `limit` points after a place, and the place of the
        last one; None on the last page.
        """
        columns = metric_points.c
        conditions = self._among(names, since, until, labels)
        if after is not None:
            day, name, text = after
            later = or_(columns.name > name, and_(columns.name == name, columns.labels > text))
            conditions.append(or_(columns.day < day, and_(columns.day == day, later)))
        query = (
            select(*COLUMNS)
            .where(*conditions)
            .order_by(columns.day.desc(), columns.name, columns.labels)
            .limit(limit + 1)
        )
        points = [_build_point(row) for row in self._database.fetch_all(query)]
        return points[:limit], _key(points[limit - 1]) if len(points) > limit else None

    def latest(self, names: Sequence[str], *, since: date | None = None) -> list[MetricPoint]:
        """The newest point of each name and labels, of the days since `since`."""
        columns = metric_points.c
        newest = (
            select(columns.name, columns.labels, func.max(columns.day).label("day"))
            .where(
                columns.name.in_(names),
                *([columns.day >= since.isoformat()] if since else []),
            )
            .group_by(columns.name, columns.labels)
            .subquery()
        )
        same = and_(*(columns[name] == newest.c[name] for name in KEY))
        query = select(*COLUMNS).join(newest, same).order_by(columns.name, columns.labels)
        return [_build_point(row) for row in self._database.fetch_all(query)]

    def find_days(self, names: Sequence[str]) -> list[date]:
        """Days with points of these names, the oldest first."""
        day = metric_points.c.day
        query = select(day).where(*self._among(names)).distinct().order_by(day)
        return [date.fromisoformat(row.day) for row in self._database.fetch_all(query)]

    def _among(
        self,
        names: Sequence[str],
        since: date | None = None,
        until: date | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Any]:
        columns = metric_points.c
        # as in the JSON of the labels, where quotes inside of a value are escaped
        pairs = [json_of({key: value}, "The label")[1:-1] for key, value in (labels or {}).items()]
        return [
            columns.name.in_(names),
            *([columns.day >= since.isoformat()] if since else []),
            *([columns.day <= until.isoformat()] if until else []),
            *(func.replace(columns.labels, pair, "") != columns.labels for pair in pairs),
        ]

    def _put(self, connection: Connection, points: Sequence[MetricPoint]) -> None:
        self._database.upsert(connection, metric_points, [_row(point) for point in points], KEY)


def _key(point: MetricPoint) -> Place:
    labels = json_of(dict(point.labels), f"labels of {point.name}")
    return point.day.isoformat(), point.name, labels


def _row(point: MetricPoint) -> dict[str, Any]:
    json_of(point, f"Metric {point.name} of {point.day}")  # refuses NaN and infinity
    return point.model_dump() | dict(zip(KEY, _key(point), strict=True))


def _build_point(row: Any) -> MetricPoint:
    """`row` has COLUMNS."""
    values = dict(zip(FIELDS, row, strict=True))
    values["labels"] = _parse_labels(values["labels"])
    return MetricPoint.model_validate(values)


@lru_cache(maxsize=4096)  # thousands of points of a chart share a few dozen labels
def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = json.loads(text)
    return labels
