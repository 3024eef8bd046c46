"""Lists comparisons for pages, by their properties and words, and flags them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import ColumnElement, func, literal, select, tuple_

from rlhf_pipeline.core.api_types.filters import ComparisonFilter, ComparisonStatus
from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS
from rlhf_pipeline.core.records import OWN_SOURCE, PEOPLE_FLAGS, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import batches, frame_of
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import comparisons, offers, votes

if TYPE_CHECKING:
    import pandas as pd

FRAME_COLUMNS = [comparisons.c[name] for name in COMPARISONS.columns]
Place = tuple[str, int, str]  # day, position, comparison_id
Listed = Literal["category", "source", "flag"]
LOOKS_AT = 20_000  # comparisons that a page of a search reads at most
MAX_VALUES = 100
FEW_VOTES = 5_000  # of an annotator: looking these up is faster than searching the list


class ComparisonLists(Repository):
    """The part of `Comparisons` that pages read, and the flags that people set there."""

    def page(
        self,
        only: ComparisonFilter = ComparisonFilter(),  # noqa: B008 (frozen)
        *,
        before: Place | None = None,
    ) -> tuple[pd.DataFrame, str | None]:
        """COMPARISONS, the last one of the newest day first, at most its `limit`, and the id after
        which the next page begins (None at the end).

        The hundredth page costs what the first one does. Conditions without an index are checked
        on LOOKS_AT comparisons at most: such a page may be short and still have a next.
        """
        place = tuple_(comparisons.c.day, comparisons.c.position, comparisons.c.comparison_id)
        newest_first = [c.desc() for c in place.clauses]
        indexed, checked = self._conditions(only)
        where = [*indexed]
        if before is not None:
            where.append(place < before)
        last: Any = None
        if checked:
            lowest = select(*place.clauses).where(*where).order_by(*newest_first)
            last = self._database.fetch_first(lowest.offset(LOOKS_AT - 1).limit(1))
            if last is not None:
                where.append(place >= tuple(last))
        rows = self._database.fetch_all(
            select(*FRAME_COLUMNS).where(*where, *checked).order_by(*newest_first).limit(only.limit)
        )
        following = None if last is None else last.comparison_id
        if len(rows) == only.limit:
            following = rows[-1].comparison_id
        return frame_of(rows, COMPARISONS), following

    def values_of(self, column: Listed) -> list[str]:
        """The values of a column, at most MAX_VALUES. Each is found from the one before by the
        index: DISTINCT would read an entry of every comparison.
        """
        value = comparisons.c[column]
        first = select(func.min(value).label("value")).where(value.is_not(None))
        listed = first.cte("listed", recursive=True)
        following = select(func.min(value)).where(value > listed.c.value).scalar_subquery()
        listed = listed.union_all(select(following).where(listed.c.value.is_not(None)))
        query = select(listed.c.value).where(listed.c.value.is_not(None))
        return list(self._database.fetch_scalars(query.limit(MAX_VALUES)))

    def has_own(self) -> bool:
        """Whether any comparison was not imported."""
        own = select(literal(1)).where(comparisons.c.source.is_(None))
        return self._database.fetch_first(own.limit(1)) is not None

    def groups_of(self, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Category and source of these comparisons by id; unknown ids are left out."""
        query = select(comparisons.c.comparison_id, comparisons.c.category, comparisons.c.source)
        rows = self._database.fetch_among(query, comparisons.c.comparison_id, ids)
        return {
            "category": {row.comparison_id: row.category for row in rows},
            "source": {row.comparison_id: row.source or OWN_SOURCE for row in rows},
        }

    def flag(self, comparison_ids: Sequence[str], flag: str | None, *, actor: str) -> int:
        """Take comparisons out of use for one of PEOPLE_FLAGS, or with None back into use; returns
        how many changed. Flags of an import stay. Raises UnknownComparison.
        """
        n_changed = 0
        changeable = comparisons.c.flag.is_(None) | comparisons.c.flag.in_(PEOPLE_FLAGS)
        for ids in self._database.with_backoff(batches(sorted(set(comparison_ids)), MAX_ROWS)):
            mine = comparisons.c.comparison_id.in_(ids)
            with audited_transaction(self._database) as (connection, ledger):
                query = select(comparisons.c.comparison_id).where(mine)
                unknown = set(ids) - set(connection.execute(query).scalars())
                if unknown:
                    raise UnknownComparison(
                        f"Comparison {min(unknown)!r} was never published here. Correct the id."
                    )
                other = comparisons.c.flag.is_distinct_from(flag)
                to_change = query.where(changeable, other).order_by(comparisons.c.comparison_id)
                changed = list(connection.execute(to_change).scalars())
                if not changed:
                    continue
                connection.execute(
                    comparisons.update()
                    .where(comparisons.c.comparison_id.in_(changed))
                    .values(flag=flag)
                )
                ledger.append(
                    actor=actor,
                    action="comparisons.flag",
                    object_id=f"{len(changed)} comparisons: {flag or 'no flag'}",
                    digest=content_hash([changed, flag]),
                )
            n_changed += len(changed)
        return n_changed

    def _conditions(
        self, only: ComparisonFilter
    ) -> tuple[list[ColumnElement[bool]], list[ColumnElement[bool]]]:
        """The condition that an index answers, if there is one, and those to check row by row."""
        indexed: list[ColumnElement[bool]] = []
        checked: list[ColumnElement[bool]] = []
        if only.annotator_id is not None:
            voted = select(votes.c.comparison_id).where(votes.c.annotator_id == only.annotator_id)
            on_this = voted.where(votes.c.comparison_id == comparisons.c.comparison_id)
            if len(self._database.fetch_scalars(voted.limit(FEW_VOTES + 1))) <= FEW_VOTES:
                indexed.append(comparisons.c.comparison_id.in_(voted))
            else:  # sorting all of theirs would take longer than finding a page of them
                checked.append(on_this.exists())
        for column in ("flag", "source", "category"):
            value = getattr(only, column)
            if column == "source" and value == OWN_SOURCE:
                checked.append(comparisons.c.source.is_(None))
            elif value is not None:
                (checked if indexed else indexed).append(comparisons.c[column] == value)
        if only.status is not None:
            checked.append(self._has_status(only.status))
        if only.q is not None:
            checked.append(comparisons.c.prompt.icontains(only.q, autoescape=True))
        return indexed, checked

    def _has_status(self, status: ComparisonStatus) -> ColumnElement[bool]:
        offered = select(literal(1)).where(offers.c.comparison_id == comparisons.c.comparison_id)
        if status == "not_offered":
            return ~offered.exists()
        waits = offered.where(offers.c.n_done < offers.c.n_wanted).exists()
        return waits if status == "waiting" else offered.exists() & ~waits
