"""The hash chain over every act, written in the act's own transaction."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, select

from rlhf_pipeline.core.records import canonical_json, content_hash
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import ONLY_ROW, UTCDateTime, audit, chain_heads

FIRST_HASH = "0" * 64
VOTE_CAST = "vote.cast"
FEEDBACK_ADD = "feedback.add"
GUIDELINES_ADD = "guidelines.add"
RULES_PUT = "rules.put"
EVALUATION_SET_ADD = "evaluation_set.add"
PREDICTIONS_WRITE = "predictions.write"
PREDICTIONS_REPLAY = "predictions.replay"
SALT_RECORDED = "annotators.salt"

LINK_COLUMNS = tuple(column.name for column in audit.c if column.name != "hash")

_HEAD = select(chain_heads)


class Ledger:
    """The head of a project's chain within one write transaction: gives vote seqs, links acts."""

    def __init__(self, connection: Connection, database: Database):
        self._connection = connection
        self._database = database
        head = connection.execute(_HEAD).first()
        self._is_new = head is None
        self.vote_seq: int = head.vote_seq if head else 0
        self.seq: int = head.audit_seq if head else 0
        self.hash: str = head.audit_hash if head else FIRST_HASH
        self._links: list[dict[str, Any]] = []

    def next_vote_seq(self) -> int:
        self.vote_seq += 1
        return self.vote_seq

    def append(
        self, *, actor: str, action: str, object_id: str, digest: str, at: datetime | None = None
    ) -> int:
        """Link one act: who did what to which thing, with the digest of what was written; returns
        the link's seq.
        """
        self.seq += 1
        at = at or self._database.clock.now()
        link = {
            "seq": self.seq,
            "at": at,
            "actor": actor,
            "action": action,
            "object_id": object_id,
            "payload_digest": digest,
            "prev_hash": self.hash,
        }
        self.hash = link_hash(link)
        link["hash"] = self.hash
        self._links.append(link)
        return self.seq

    def write(self) -> None:
        """Insert the links and move the head: the last thing a transaction does."""
        if not self._links:
            return
        self._database.insert(self._connection, audit, self._links)
        head = {"vote_seq": self.vote_seq, "audit_seq": self.seq, "audit_hash": self.hash}
        if self._is_new:
            self._database.insert(
                self._connection, chain_heads, [{"chain_head_id": ONLY_ROW, **head}]
            )
        else:
            self._connection.execute(chain_heads.update().values(head))


_JOINT_TRANSACTION: ContextVar[tuple[Database, Connection, Ledger] | None] = ContextVar(
    "together", default=None
)


@contextmanager
def audited_transaction(
    database: Database,
) -> Iterator[tuple[Connection, Ledger]]:
    """A write transaction whose acts are linked into the chain before it commits. Inside
    `joint_transaction` it is that transaction.
    """
    together = _JOINT_TRANSACTION.get()
    if together is not None and together[0] is database:
        yield together[1], together[2]
        return
    with database.write_transaction() as connection:
        ledger = Ledger(connection, database)
        yield connection, ledger
        ledger.write()


@contextmanager
def joint_transaction(database: Database) -> Iterator[Connection]:
    """Run several acts as one transaction: all are kept or none. Let errors leave the block.

    Until the end nobody else sees what was written, nor does `read_transaction` in the block.
    """
    with audited_transaction(database) as (connection, ledger):
        before = _JOINT_TRANSACTION.set((database, connection, ledger))
        try:
            yield connection
        finally:
            _JOINT_TRANSACTION.reset(before)


def link_hash(link: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of the LINK_COLUMNS of a link, the previous hash included."""
    values = {name: link[name] for name in LINK_COLUMNS} | {"at": link["at"].isoformat()}
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def row_digest(table: Table, row: Mapping[Any, Any]) -> str:
    """The canonical hash of a stored row, equal before its insert and after every read: the
    `content_hash` of its columns, times in UTC. A lease is no act and is left out.
    """
    names, times = _linked_columns(table)
    values = {name: row[name] for name in names}
    return content_hash(values | {name: at.astimezone(UTC) for name in times if (at := row[name])})


@cache
def _linked_columns(table: Table) -> tuple[list[str], list[str]]:
    """The names of the hashed columns, and of the times among them."""
    hashed = [column for column in table.c if column.name not in ("leased_until", "link_seq")]
    times = [column.name for column in hashed if isinstance(column.type, UTCDateTime)]
    return [column.name for column in hashed], times


def sum_digests(table: Table, rows: Sequence[Mapping[Any, Any]]) -> str:
    """One digest of several rows of `table`, whatever their order."""
    return hex_of_sum(sum(int(row_digest(table, row), 16) for row in rows))


def hex_of_sum(total: int) -> str:
    return f"{total % 2**256:064x}"
