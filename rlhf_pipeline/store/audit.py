"""The hash chain over every act, written in the act's own transaction."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Table, func, select

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import Record, content_hash
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import (
    ONLY_ROW,
    annotation_rules,
    audit,
    evaluation_sets,
    feedback,
    guidelines,
    heads,
    loop_settings,
    votes,
)

FIRST_HASH = "0" * 64
VOTE_CAST = "vote.cast"
FEEDBACK_ADD = "feedback.add"
GUIDELINES_ADD = "guidelines.add"
RULES_PUT = "rules.put"
EVALUATION_SET_ADD = "evaluation_set.add"
LOOP_SETTINGS_PUT = "loop_settings.put"
SALT_RECORDED = "annotators.salt"
VERIFY_ROWS = 5_000  # read at a time
PAGE_LOOKS_AT = 50_000  # links that a page reads at most, whatever the filter

LINK_COLUMNS = tuple(column.name for column in audit.c if column.name != "hash")


_HEAD = select(heads)


class AuditLink(Record):
    """One act: who did what to which thing, with the digest of what was written."""

    seq: int
    at: datetime
    actor: str
    action: str
    object_id: str
    payload_digest: str
    prev_hash: str
    hash: str


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
    ) -> None:
        """Link one act: who did what to which thing, with the digest of what was written."""
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

    def write(self) -> None:
        """Insert the links and move the head: the last thing a transaction does."""
        if not self._links:
            return
        self._database.insert(self._connection, audit, self._links)
        head = {"vote_seq": self.vote_seq, "audit_seq": self.seq, "audit_hash": self.hash}
        if self._is_new:
            self._database.insert(self._connection, heads, [{"head_id": ONLY_ROW, **head}])
        else:
            self._connection.execute(heads.update().values(head))


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
    columns = {name: link[name] for name in LINK_COLUMNS} | {"at": link["at"].isoformat()}
    text = json.dumps(columns, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def row_digest(table: Table, row: Mapping[str, Any]) -> str:
    """Digest of a stored row that is neither changed nor removed: the `content_hash` of it."""
    return content_hash({column.name: row[column.name] for column in table.c})


class AuditedTable(NamedTuple):
    """Rows that an act writes once: the link's `object_id` names the row, its digest is the
    row's.
    """

    table: Table
    key: Column[Any]
    name: str


AUDITED_TABLES = {
    VOTE_CAST: AuditedTable(votes, votes.c.vote_id, "vote"),
    FEEDBACK_ADD: AuditedTable(feedback, feedback.c.feedback_id, "feedback"),
    GUIDELINES_ADD: AuditedTable(guidelines, guidelines.c.version, "version of the guidelines"),
    RULES_PUT: AuditedTable(annotation_rules, annotation_rules.c.version, "version of the rules"),
    EVALUATION_SET_ADD: AuditedTable(
        evaluation_sets, evaluation_sets.c.version, "version of the evaluation set"
    ),
    LOOP_SETTINGS_PUT: AuditedTable(
        loop_settings, loop_settings.c.version, "version of the loop settings"
    ),
}


class Audit:
    """Reads and verifies the chain; the acts themselves append to it."""

    def __init__(self, database: Database):
        self._database = database

    def count(self) -> int:
        return self._database.count(audit)

    def head(self) -> tuple[int, str]:
        """Seq and hash of the newest link; 0 and the first hash in an empty chain."""
        row = self._database.fetch_first(select(heads.c.audit_seq, heads.c.audit_hash))
        return (0, FIRST_HASH) if row is None else (row.audit_seq, row.audit_hash)

    def hash_at(self, seq: int) -> str | None:
        """The hash of one link; None if there is no such link."""
        with self._database.read_transaction() as connection:
            found: str | None = connection.execute(
                select(audit.c.hash).where(audit.c.seq == seq)
            ).scalar()
            return found

    def record_salt(self, digest: str) -> None:
        """Link the hash of the salt that makes the annotators' pseudonyms."""
        with audited_transaction(self._database) as (_, ledger):
            ledger.append(
                actor="import", action=SALT_RECORDED, object_id="annotator_salt", digest=digest
            )

    def find_digest(self, action: str) -> str | None:
        """The digest of the first link of an action; None without one."""
        wanted = select(audit.c.payload_digest).where(audit.c.action == action)
        return self._database.fetch_scalar(wanted.order_by(audit.c.seq).limit(1))

    def page(
        self,
        *,
        before_seq: int | None = None,
        actor: str | None = None,
        action: str | None = None,
        object_id: str | None = None,
        limit: int = 50,
        within: int = PAGE_LOOKS_AT,
    ) -> tuple[list[AuditLink], int | None]:
        """Links newest first, at most `limit`, and `before_seq` of the next page (None at the end
        of the chain).

        `action` may end in `*`. A page reads at most `within` links: for a rare actor it may be
        empty and still have a next.
        """
        upper = before_seq if before_seq is not None else self.head()[0] + 1
        lower = max(1, upper - within)
        conditions = [audit.c.seq < upper, audit.c.seq >= lower]
        if actor is not None:
            conditions.append(audit.c.actor == actor)
        if object_id is not None:
            conditions.append(audit.c.object_id == object_id)
        if action is not None:
            is_prefix = action.endswith("*")
            conditions.append(
                audit.c.action.startswith(action[:-1], autoescape=True)
                if is_prefix
                else audit.c.action == action
            )
        rows = self._database.fetch_mappings(
            select(audit).where(*conditions).order_by(audit.c.seq.desc()).limit(limit)
        )
        links = [
            AuditLink.model_validate({name: row[name] for name in AuditLink.model_fields})
            for row in rows
        ]
        if len(links) == limit:
            return links, links[-1].seq if links[-1].seq > 1 else None
        return links, lower if lower > 1 else None

    def after(self, seq: int, *, limit: int) -> list[AuditLink]:
        """Links above a seq, oldest first."""
        wanted = select(audit).where(audit.c.seq > seq).order_by(audit.c.seq).limit(limit)
        rows = self._database.fetch_mappings(wanted)
        return [
            AuditLink.model_validate({name: row[name] for name in AuditLink.model_fields})
            for row in rows
        ]

    def verify(self) -> int:
        """Check the whole chain, and every vote, feedback, guideline and rule against its link;
        returns the number of links.

        Raises StoreError naming the first seq that was changed, removed or cut off, in the chain or
        in those rows.
        """
        with self._database.read_transaction() as connection:
            previous, n_kept = FIRST_HASH, Counter[str]()
            seq = 0
            for seq, (link, row) in enumerate(self._read_links(connection), start=1):
                self._check_link(link, seq, previous)
                if link["action"] in AUDITED_TABLES:
                    n_kept[link["action"]] += 1
                    self._check_row(link, row)
                previous = link["hash"]
            self._check_ends(connection, seq, previous, n_kept)
        return seq

    def _read_links(
        self, connection: Connection
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Links in order, each with the row it stands for (None for acts that write none, and for
        missing rows).
        """
        after = 0
        while True:
            links = connection.execute(
                select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(VERIFY_ROWS)
            ).all()
            if not links:
                return
            rows = {
                action: self._read_rows(
                    connection, action, [link.object_id for link in links if link.action == action]
                )
                for action in AUDITED_TABLES
            }
            for link in links:
                yield dict(link._mapping), rows.get(link.action, {}).get(link.object_id)
            after = links[-1].seq

    def _read_rows(
        self, connection: Connection, action: str, ids: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """The rows that links of one action stand for, by object_id."""
        table, key, _ = AUDITED_TABLES[action]
        if not ids:
            return {}
        wanted = (
            ids
            if key.type.python_type is str
            else [int(one) for one in ids if one.isascii() and one.isdigit() and len(one) <= 18]
        )
        found = connection.execute(select(table).where(key.in_(wanted))).mappings()
        return {str(row[key.name]): dict(row) for row in found}

    def _check_link(self, link: Mapping[str, Any], seq: int, previous: str) -> None:
        if link["seq"] != seq:
            raise self._broken_chain_error(seq, f"is missing (the next one found is {link['seq']})")
        if link["prev_hash"] != previous:
            raise self._broken_chain_error(seq, "does not follow its predecessor")
        if link_hash(link) != link["hash"]:
            raise self._broken_chain_error(seq, "was changed")

    def _check_row(self, link: Mapping[str, Any], row: Mapping[str, Any] | None) -> None:
        table, _, name = AUDITED_TABLES[link["action"]]
        if row is None:
            raise self._broken_chain_error(
                link["seq"], f"stands for {name} {link['object_id']}, which was removed"
            )
        if row_digest(table, row) != link["payload_digest"]:
            number = f" (seq {row['seq']})" if table is votes else ""
            raise self._broken_chain_error(
                link["seq"], f"stands for {name} {link['object_id']}{number}, which was changed"
            )

    def _check_ends(
        self, connection: Connection, seq: int, previous: str, n_kept: Mapping[str, int]
    ) -> None:
        head = Ledger(connection, self._database)
        if (head.seq, head.hash) != (seq, previous):
            raise self._broken_chain_error(
                min(seq, head.seq) + 1,
                f"is the first at which chain (end {seq}) and head ({head.seq}) differ: the tail "
                f"was cut",
            )
        for action, (table, _, _) in AUDITED_TABLES.items():
            n = n_kept[action]
            stored = connection.execute(select(func.count()).select_from(table)).scalar_one()
            if stored != n:
                raise self._broken_chain_error(
                    seq,
                    f"ends a chain of {n} {table.name}, but {stored} are stored: {table.name} were "
                    "added or removed without their link",
                )

    def _broken_chain_error(self, seq: int, what: str) -> StoreError:
        return StoreError(
            f"The audit chain is broken at seq {seq}: it {what}. Stop writing, keep the file "
            "as evidence and restore the last backup that verifies."
        )
