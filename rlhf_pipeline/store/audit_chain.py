"""Reads the audit chain, and verifies it with the rows that its links stand for."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, String, Table, cast, func, select

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.audit import (
    FIRST_HASH,
    PREDICTIONS_REPLAY,
    PREDICTIONS_WRITE,
    SALT_RECORDED,
    Ledger,
    audited_transaction,
    hex_of_sum,
    link_hash,
    row_digest,
)
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import (
    annotation_rules,
    audit,
    calibrations,
    chain_heads,
    dataset_versions,
    decisions,
    evaluation_sets,
    experiments,
    feedback,
    feedback_reviews,
    gate_sessions,
    gates,
    guidelines,
    pair_revisions,
    predictions,
    release_acts,
    taste_changes,
    votes,
)

VERIFY_ROWS = 5_000  # read at a time
PAGE_LOOKS_AT = 50_000  # links that a page reads at most, whatever the filter


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


class AuditedTable(NamedTuple):
    """Rows that acts write: the last link with a row's name as `object_id` has the row's digest."""

    table: Table
    object_id: ColumnElement[Any]
    name: str


AUDITED_TABLES = {
    "vote": AuditedTable(votes, votes.c.vote_id, "vote"),
    "feedback": AuditedTable(feedback, cast(feedback.c.feedback_id, String), "feedback"),
    "guidelines": AuditedTable(
        guidelines, cast(guidelines.c.version, String), "version of the guidelines"
    ),
    "rules": AuditedTable(
        annotation_rules, cast(annotation_rules.c.version, String), "version of the rules"
    ),
    "evaluation_set": AuditedTable(
        evaluation_sets, cast(evaluation_sets.c.version, String), "version of the evaluation set"
    ),
    "decision": AuditedTable(decisions, cast(decisions.c.decision_id, String), "decision"),
    "release_act": AuditedTable(
        release_acts, cast(release_acts.c.act_id, String), "act of a release"
    ),
    "gate": AuditedTable(gates, cast(gates.c.gate_id, String), "decision of the gate"),
    "gate_session": AuditedTable(
        gate_sessions, cast(gate_sessions.c.session_id, String), "session of the gate"
    ),
    "experiment": AuditedTable(
        experiments, cast(experiments.c.experiment_id, String), "experiment"
    ),
    "taste_change": AuditedTable(
        taste_changes, cast(taste_changes.c.change_id, String), "taste change"
    ),
    "dataset_version": AuditedTable(
        dataset_versions,
        cast(dataset_versions.c.dataset_id, String)
        + " version "
        + cast(dataset_versions.c.version, String),
        "version of a data set",
    ),
    "pair": AuditedTable(
        pair_revisions,
        cast(pair_revisions.c.pair_id, String)
        + " revision "
        + cast(pair_revisions.c.revision, String),
        "revision of a preference pair",
    ),
    "review": AuditedTable(
        feedback_reviews,
        cast(feedback_reviews.c.feedback_id, String)
        + " review "
        + cast(feedback_reviews.c.review_id, String),
        "review of feedback",
    ),
    "calibration": AuditedTable(
        calibrations,
        calibrations.c.reward_model + " calibrator " + cast(calibrations.c.version, String),
        "calibration",
    ),
}
# Of the other tables each row is written once; a few rows of these change.
CHANGING = ("decision", "taste_change", "gate_session", "experiment")


class Audit(Repository):
    """Reads and verifies the chain; the acts themselves append to it."""

    def count(self) -> int:
        return self._database.count(audit)

    def head(self) -> tuple[int, str]:
        """Seq and hash of the newest link; 0 and the first hash in an empty chain."""
        row = self._database.fetch_first(select(chain_heads.c.audit_seq, chain_heads.c.audit_hash))
        return (0, FIRST_HASH) if row is None else (row.audit_seq, row.audit_hash)

    def record_salt(self, digest: str) -> None:
        """Link the hash of the salt that makes the annotators' pseudonyms."""
        with audited_transaction(self._database) as (_, ledger):
            ledger.append(
                actor="import", action=SALT_RECORDED, object_id="annotator_salt", digest=digest
            )

    def find_digest(self, action: str) -> str | None:
        """The digest of the first link of an action; None without one."""
        query = select(audit.c.payload_digest).where(audit.c.action == action)
        return self._database.fetch_scalar(query.order_by(audit.c.seq).limit(1))

    def page(
        self,
        only: AuditFilter = AuditFilter(),  # noqa: B008 (frozen)
        *,
        before_seq: int | None = None,
        within: int = PAGE_LOOKS_AT,
    ) -> tuple[list[AuditLink], int | None]:
        """Links newest first, whatever the filter's cursor, and `before_seq` of the next page (None
        at the end of the chain). A page reads at most `within` links: for a rare actor it may be
        empty and still have a next.
        """
        upper = before_seq if before_seq is not None else self.head()[0] + 1
        lower = max(1, upper - within)
        conditions = [audit.c.seq < upper, audit.c.seq >= lower]
        if only.actor is not None:
            conditions.append(audit.c.actor == only.actor)
        if only.object_id is not None:
            conditions.append(audit.c.object_id == only.object_id)
        if only.action is not None:
            is_prefix = only.action.endswith("*")
            conditions.append(
                audit.c.action.startswith(only.action[:-1], autoescape=True)
                if is_prefix
                else audit.c.action == only.action
            )
        rows = self._database.fetch_mappings(
            select(audit).where(*conditions).order_by(audit.c.seq.desc()).limit(only.limit)
        )
        links = [
            AuditLink.model_validate({name: row[name] for name in AuditLink.model_fields})
            for row in rows
        ]
        if len(links) == only.limit:
            return links, links[-1].seq if links[-1].seq > 1 else None
        return links, lower if lower > 1 else None

    def after(self, seq: int, *, limit: int) -> list[AuditLink]:
        """Links above a seq, oldest first."""
        query = select(audit).where(audit.c.seq > seq).order_by(audit.c.seq).limit(limit)
        rows = self._database.fetch_mappings(query)
        return [
            AuditLink.model_validate({name: row[name] for name in AuditLink.model_fields})
            for row in rows
        ]

    def verify(self) -> int:
        """Check the whole chain, and every row of the audited tables and every prediction against
        its link; returns the number of links.

        Raises StoreError naming the first seq that was changed, removed or cut off, in the chain or
        in those rows.
        """
        with self._database.read_transaction() as connection:
            predicted = self._sum_predictions(connection)
            previous, n_kept = FIRST_HASH, Counter[str]()
            seq = 0
            for seq, (link, row) in enumerate(self._read_links(connection), start=1):
                self._check_link(link, seq, previous)
                if row is not None:
                    n_kept[_subject(link["action"])] += 1
                    self._check_row(link, row)
                if link["action"] in (PREDICTIONS_WRITE, PREDICTIONS_REPLAY):
                    self._check_predictions(link, predicted.pop(seq, 0))
                previous = link["hash"]
            self._check_ends(connection, seq, previous, n_kept)
            for other in predicted:
                raise self._broken_chain_error(other, "has predictions that it did not write")
        return seq

    def _sum_predictions(self, connection: Connection) -> Counter[int]:
        """By link: the sum of the digests of the predictions that name it."""
        sums = Counter[int]()
        streamed = {"yield_per": VERIFY_ROWS}
        for row in connection.execute(select(predictions), execution_options=streamed):
            sums[row.link_seq] += int(row_digest(predictions, row._mapping), 16)
        return sums

    def _check_predictions(self, link: Mapping[str, Any], total: int) -> None:
        if hex_of_sum(total) != link["payload_digest"]:
            raise self._broken_chain_error(
                link["seq"],
                f"stands for {link['object_id']}, of which some were changed, added or removed",
            )

    def _read_links(
        self, connection: Connection
    ) -> Iterator[tuple[dict[str, Any], Mapping[Any, Any] | None]]:
        """Links in order, each with the row that it is the last one of: None for other acts, empty
        for a missing row.
        """
        newest = select(func.max(audit.c.seq)).group_by(audit.c.object_id)
        last = {
            seq
            for subject in CHANGING
            for seq in connection.execute(
                newest.where(audit.c.action.startswith(f"{subject}."))
            ).scalars()
        }
        after = 0
        while True:
            links = connection.execute(
                select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(VERIFY_ROWS)
            ).all()
            if not links:
                return
            ids_by_subject: dict[str, list[str]] = {}
            for link in links:
                ids_by_subject.setdefault(_subject(link.action), []).append(link.object_id)
            rows = {
                subject: self._read_rows(connection, AUDITED_TABLES[subject], ids)
                for subject, ids in ids_by_subject.items()
                if subject in AUDITED_TABLES
            }
            for link in links:
                subject = _subject(link.action)
                is_last = subject not in CHANGING or link.seq in last
                subject_rows = rows.get(subject) if is_last else None
                yield (
                    dict(link._mapping),
                    None if subject_rows is None else subject_rows.get(link.object_id, {}),
                )
            after = links[-1].seq

    def _read_rows(
        self, connection: Connection, audited: AuditedTable, ids: Sequence[str]
    ) -> dict[str, Mapping[Any, Any]]:
        """The rows of these names."""
        query = select(audited.table, audited.object_id.label("object_id"))
        rows = connection.execute(query.where(audited.object_id.in_(ids))).mappings()
        return {row["object_id"]: row for row in rows}

    def _check_link(self, link: Mapping[str, Any], seq: int, previous: str) -> None:
        if link["seq"] != seq:
            raise self._broken_chain_error(seq, f"is missing (the next one found is {link['seq']})")
        if link["prev_hash"] != previous:
            raise self._broken_chain_error(seq, "does not follow its predecessor")
        if link_hash(link) != link["hash"]:
            raise self._broken_chain_error(seq, "was changed")

    def _check_row(self, link: Mapping[str, Any], row: Mapping[Any, Any]) -> None:
        table, _, name = AUDITED_TABLES[_subject(link["action"])]
        stands_for = f"stands for {name} {link['object_id']}"
        if not row:
            raise self._broken_chain_error(link["seq"], f"{stands_for}, which was removed")
        if row_digest(table, row) != link["payload_digest"]:
            number = f" (seq {row['seq']})" if table is votes else ""
            raise self._broken_chain_error(link["seq"], f"{stands_for}{number}, which was changed")

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
        for subject, (table, _, _) in AUDITED_TABLES.items():
            n = n_kept[subject]
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


def _subject(action: str) -> str:
    """What an act is about: the part of its action before the dot."""
    return action.partition(".")[0]
