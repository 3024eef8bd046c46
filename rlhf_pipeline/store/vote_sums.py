"""Sums of votes by measure and cell and votes by annotator, up to a seq; annotators' groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Table,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from rlhf_pipeline.records import AnnotatorCell, AnnotatorKind, RatioSums, Record, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import (
    ONLY_ROW,
    annotator_groups,
    annotator_sums,
    vote_sums,
    vote_sums_head,
    votes,
)

if TYPE_CHECKING:
    import pandas as pd

SUMS = RatioSums._fields


KEY = ("annotator_group", "category", "source", "model_version")  # after the measure
KINDS = ("category", "source", "model_version")  # of comparisons


class VoteCell(Record):
    """Which votes to add up; a missing value takes all."""

    since: date | None = None
    until: date | None = None
    category: str | None = None
    source: str | None = None
    annotator_group: str | None = None
    model_version: str | None = None

    @property
    def kinds(self) -> dict[str, str | None]:
        """The chosen category, source and model of the comparisons."""
        return {name: getattr(self, name) for name in KINDS}

    def select(self, by: Sequence[str]) -> dict[str, str | None]:
        """The value that each column has in the rows to add up, None for any but "", which stands
        for all: beside the sums of each group there are those of everybody, and beside those of
        each category, source and model those of all three.
        """
        is_whole = not any(self.kinds.values()) and not {*by} & {*KINDS}
        group = self.annotator_group or (None if "annotator_group" in by else "")
        return {"annotator_group": group, **(dict.fromkeys(KINDS, "") if is_whole else self.kinds)}


class SumsHead(NamedTuple):
    """The sums hold the votes up to `seq`; `revision` grows when a group of annotators changes."""

    seq: int
    revision: int


class VoteSums:
    """Votes change sums by addition alone, so any process may count the next ones."""

    def __init__(self, database: Database):
        self._database = database

    def head(self) -> SumsHead:
        """How far votes are summed."""
        with self._database.read_transaction() as connection:
            return self._read_head(connection)

    def read(
        self,
        measures: Sequence[str],
        by: Sequence[str] = (),
        cell: VoteCell = VoteCell(),  # noqa: B008 (frozen)
    ) -> tuple[SumsHead, Sequence[Any]]:
        """Rows of measure, the columns `by` and SUMS, and how far they are summed."""
        # First by the key up to the last column, because SQLite sorts nothing then.
        prefix = by if "day" in by else KEY[: max((KEY.index(name) + 1 for name in by), default=0)]
        parts = _sum_by(vote_sums, prefix).where(*_conditions(measures, by, cell))
        wanted = _sum_by(parts.subquery(), by).order_by("measure", *by)
        with self._database.read_transaction() as connection:
            head = self._read_head(connection)
            _read_by_key(connection)
            return head, connection.execute(wanted).all() if head.seq else ()

    def count_voters(self, cell: VoteCell, by: str) -> dict[str, int]:
        """Annotators with a vote other than a skip in the cell, by the column `by`."""
        columns, group = annotator_sums.c, annotator_groups.c.name
        place = group if by == "annotator_group" else columns[by]
        wanted = (
            select(place, func.count(columns.annotator_id.distinct()))
            .join(annotator_groups, annotator_groups.c.annotator_id == columns.annotator_id)
            .where(
                columns.n > 0,
                *_day_conditions(columns, cell),
                *(
                    columns[kind] == value
                    for kind, value in cell.kinds.items()
                    if value is not None
                ),
                *([group == cell.annotator_group] if cell.annotator_group is not None else []),
            )
            .group_by(place)
        )
        return {row[0]: row[1] for row in self._database.fetch_all(wanted)}

    def add(
        self,
        sums: pd.DataFrame,
        by_annotator: Mapping[AnnotatorCell, int],
        *,
        after: SumsHead,
        up_to_seq: int,
    ) -> bool:
        """Add what the votes after the head change, and place new annotators in the group of their
        first vote's origin. False, and nothing is added, if the head has moved meanwhile.
        """
        with self._database.write_transaction() as connection:
            if self._read_head(connection) != after:
                return False
            if after.seq == 0:
                for table in (vote_sums, annotator_sums):
                    connection.execute(table.delete())
            self._insert_groups(connection, after.seq, up_to_seq)
            votes_by_annotator = [dict(cell._asdict(), n=n) for cell, n in by_annotator.items()]
            for table, rows in (
                (vote_sums, sums.to_dict("records")),
                (annotator_sums, votes_by_annotator),
            ):
                for some in batches(rows, MAX_ROWS):
                    _upsert(connection, table, some, adding=SUMS)
            self._write_head(connection, SumsHead(up_to_seq, after.revision))
        return True

    def groups(self, annotator_ids: Sequence[str]) -> dict[str, str]:
        """Group by annotator; those whose votes are not counted yet are left out."""
        wanted = select(annotator_groups.c.annotator_id, annotator_groups.c.name)
        rows = self._database.fetch_among(wanted, annotator_groups.c.annotator_id, annotator_ids)
        return {row.annotator_id: row.name for row in rows}

    def first_origins(self, after_seq: int, up_to_seq: int) -> dict[str, str]:
        """The origin of each person's first vote between two seqs."""
        with self._database.read_transaction() as connection:
            rows = self._read_first_votes(connection, after_seq, up_to_seq)
            return {row.annotator_id: row.origin for row in rows}

    def group_sizes(self) -> dict[str, int]:
        """Number of people with a counted vote by group."""
        wanted = (
            select(annotator_groups.c.name, func.count())
            .where(
                annotator_groups.c.first_seq.is_not(None),
            )
            .group_by(annotator_groups.c.name)
        )
        return {row[0]: row[1] for row in self._database.fetch_all(wanted)}

    def tags(self) -> dict[str, str]:
        """Group of each annotator who was given one."""
        wanted = select(annotator_groups.c.annotator_id, annotator_groups.c.name).where(
            annotator_groups.c.is_tag
        )
        return {row.annotator_id: row.name for row in self._database.fetch_all(wanted)}

    def tag(self, group_of: Mapping[str, str | None], *, actor: str) -> int:
        """Give annotators a group, or with None that of their first vote's origin again; returns
        how many changed. If one of them has voted, all votes are counted again.
        """
        wanted = select(annotator_groups)
        with audited_transaction(self._database) as (connection, ledger):
            known = {row.annotator_id: row for row in connection.execute(wanted)}
            current = {who: row.name for who, row in known.items() if row.is_tag}
            changed = {who: g for who, g in group_of.items() if current.get(who) != g}
            if not changed:
                return 0
            for who, name in changed.items():
                if name is not None:
                    row = {"annotator_id": who, "name": name, "is_tag": True}
                    _upsert(connection, annotator_groups, [row])
            removed = [who for who, name in changed.items() if name is None]
            for some in batches(removed, MAX_ROWS):
                of = annotator_groups.c.annotator_id.in_(some)
                connection.execute(annotator_groups.delete().where(of))
            if any(who in known and known[who].first_seq is not None for who in changed):
                revision = self._read_head(connection).revision + 1
                self._write_head(connection, SumsHead(0, revision))
            ledger.append(
                actor=actor,
                action="annotators.tag",
                object_id=f"{len(changed)} annotators",
                digest=content_hash(sorted(changed.items())),
            )
        return len(changed)

    def _read_head(self, connection: Connection) -> SumsHead:
        wanted = select(vote_sums_head)
        row = connection.execute(wanted).one_or_none()
        if row is None:
            return SumsHead(0, 0)
        return SumsHead(row.seq, row.revision)

    def _write_head(self, connection: Connection, head: SumsHead) -> None:
        _upsert(connection, vote_sums_head, [{"head_id": ONLY_ROW, **head._asdict()}])

    def _insert_groups(self, connection: Connection, after_seq: int, up_to_seq: int) -> None:
        first = self._read_first_votes(connection, after_seq, up_to_seq)
        known: dict[str, int | None] = {}
        for some in batches([row.annotator_id for row in first], MAX_ROWS):
            wanted = select(annotator_groups).where(annotator_groups.c.annotator_id.in_(some))
            known |= {row.annotator_id: row.first_seq for row in connection.execute(wanted)}
        new = [
            {"annotator_id": v.annotator_id, "name": v.origin, "is_tag": False, "first_seq": v.seq}
            for v in first
            if v.annotator_id not in known
        ]
        self._database.insert(connection, annotator_groups, new)
        for vote in first:
            if vote.annotator_id in known and known[vote.annotator_id] is None:
                this = annotator_groups.c.annotator_id == vote.annotator_id
                connection.execute(annotator_groups.update().where(this).values(first_seq=vote.seq))

    def _read_first_votes(
        self, connection: Connection, after_seq: int, up_to_seq: int
    ) -> list[Any]:
        wanted = (
            select(votes.c.annotator_id, votes.c.origin, votes.c.seq)
            .where(
                votes.c.seq > after_seq,
                votes.c.seq <= up_to_seq,
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            )
            .order_by(votes.c.seq.desc())
        )
        return list({row.annotator_id: row for row in connection.execute(wanted)}.values())


def _read_by_key(connection: Connection) -> None:
    """For this transaction: Postgres overestimates the cost of reading ranges of the key, and would
    scan the whole table instead, which takes four times as long.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(text("SET LOCAL enable_seqscan = off"))


def _sum_by(table: Table | Subquery, by: Sequence[str]) -> Select[Any]:
    columns = [table.c[name] for name in ("measure", *by)]
    sums = (func.sum(table.c[name]).label(name) for name in SUMS)
    return select(*columns, *sums).group_by(*columns)


def _conditions(
    measures: Sequence[str], by: Sequence[str], cell: VoteCell
) -> list[ColumnElement[bool]]:
    columns = vote_sums.c
    return [
        columns.measure.in_(measures),
        columns.n > 0,
        *_day_conditions(columns, cell),
        *(
            columns[name] != "" if value is None else columns[name] == value
            for name, value in cell.select(by).items()
        ),
    ]


def _day_conditions(columns: Any, cell: VoteCell) -> list[ColumnElement[bool]]:
    return [
        *([columns.day >= cell.since.isoformat()] if cell.since else []),
        *([columns.day <= cell.until.isoformat()] if cell.until else []),
    ]


def _upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    adding: Sequence[str] = (),
) -> None:
    """Insert rows; where the key is there, replace the other columns, or add to those in
    `adding`.
    """
    if not rows:
        return
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insert = dialect.insert(table)
    key = [column.name for column in table.primary_key.columns]
    others = [name for name in rows[0] if name not in key]
    values = {
        name: table.c[name] + insert.excluded[name] if name in adding else insert.excluded[name]
        for name in others
    }
    connection.execute(
        insert.on_conflict_do_update(index_elements=key, set_=values), [dict(row) for row in rows]
    )
