"""Counts which of some annotators voted in a cell, and stops at a few: charts withhold fewer."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import JSON, ColumnElement, Select, String, cast, func, literal, select

from rlhf_pipeline.records import OWN_SOURCE, AnnotatorKind, Choice
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, votes
from rlhf_pipeline.store.vote_lists import is_on_comparison
from rlhf_pipeline.store.vote_sums import VoteCell


class VoterCounts:
    """Skips are no votes, and machines no annotators; the group of a cell does not matter."""

    def __init__(self, database: Database):
        self._database = database

    def count(self, annotator_ids: Iterable[str], cell: VoteCell, *, most: int) -> int:
        """Number of these annotators with a vote on the days and comparisons of the cell, at most
        `most`. Stops early: a chart asks for each of its groups.
        """
        wanted = self._select_voters(cell).limit(1)
        left, n = set(annotator_ids), 0
        while n < most and left:
            found = self._database.fetch_among(wanted, votes.c.annotator_id, left)
            if not found:
                break
            left -= {row.annotator_id for row in found}
            n += len(found)
        return min(n, most)

    def count_by_day(
        self, annotator_ids: Iterable[str], cell: VoteCell, days: Iterable[str], *, most: int
    ) -> dict[str, int]:
        """`count` of each of these days, YYYY-MM-DD, whatever the days of the cell. Each query
        finds one more annotator of every day: a DISTINCT with a limit would read all votes of a day
        on Postgres.
        """
        cell = cell.model_copy(update={"since": None, "until": None})
        seen: dict[str, list[str]] = {day: [] for day in days}
        with self._database.read_transaction() as connection:
            for ids in batches(sorted(set(annotator_ids)), MAX_PARAMETERS):
                left = [day for day, who in seen.items() if len(who) < most]
                while left:
                    found = [
                        row
                        for some in batches(left, MAX_ROWS)
                        for row in connection.execute(
                            self._select_others(cell, ids, [[day, *seen[day]] for day in some])
                        )
                        if row.annotator_id is not None
                    ]
                    for row in found:
                        seen[row.day].append(row.annotator_id)
                    left = [row.day for row in found if len(seen[row.day]) < most]
        return {day: len(who) for day, who in seen.items()}

    def _select_voters(self, cell: VoteCell) -> Select[Any]:
        """The annotator of each vote that counts."""
        wanted = select(votes.c.annotator_id)
        if cell.category or cell.source or cell.model_version:
            wanted = wanted.join(comparisons, is_on_comparison())
        return wanted.where(
            self._database.in_project(votes),
            votes.c.choice != Choice.SKIP.value,
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            *_conditions(cell),
        )

    def _select_others(
        self, cell: VoteCell, annotator_ids: Sequence[str], asked: Sequence[Sequence[str]]
    ) -> Select[Any]:
        """One of these annotators with a vote, or None, for each day asked for. After the day come
        the annotators to leave out.
        """
        width = max(map(len, asked))
        rows = [[*one, *[""] * (width - len(one))] for one in asked]
        day, *known = _list_columns(rows, is_sqlite=self._database.is_sqlite)
        other = (
            self._select_voters(cell)
            .where(
                votes.c.day == day,
                votes.c.annotator_id.in_(annotator_ids),
                *(votes.c.annotator_id != one for one in known),
            )
            .limit(1)
        )
        return select(day.label("day"), other.scalar_subquery().label("annotator_id"))


def _list_columns(rows: Sequence[Sequence[str]], *, is_sqlite: bool) -> list[ColumnElement[str]]:
    """The columns of a table of texts: one parameter, so SQLAlchemy compiles its query once."""
    table, places = literal(json.dumps(rows), String), range(len(rows[0]))
    if is_sqlite:
        each = func.json_each(table).table_valued("value", name="asked").c.value
        return [func.json_extract(each, f"$[{n}]", type_=String) for n in places]
    each = func.json_array_elements(cast(table, JSON)).table_valued("value", name="asked").c.value
    return [each.op("->>", return_type=String())(n) for n in places]


def _conditions(cell: VoteCell) -> list[ColumnElement[bool]]:
    """Those of a cell but for its group, on the votes and their comparisons."""
    source, model = comparisons.c.source, cell.model_version
    is_own = cell.source == OWN_SOURCE
    return [
        *([votes.c.day >= cell.since.isoformat()] if cell.since else []),
        *([votes.c.day <= cell.until.isoformat()] if cell.until else []),
        *([comparisons.c.category == cell.category] if cell.category else []),
        *([source.is_(None) if is_own else source == cell.source] if cell.source else []),
        *(comparisons.c[f"model_version_{side}"] == model for side in "ab" if model),
    ]
