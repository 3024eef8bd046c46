"""Retraining decisions: one transaction reads evidence, calls the rule and claims events."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, and_, func, or_, select

from rlhf_pipeline.errors import IdempotencyConflict, NotFound, StoreError
from rlhf_pipeline.records import (
    AnnotatorKind,
    Choice,
    LeftToPeople,
    Quarantine,
    TrainingOrder,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.counting import supersedes
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.events import IS_OPEN, read_events
from rlhf_pipeline.store.schema import decisions, drift_events, votes
from rlhf_pipeline.store.taste_changes import record_change

Rule = Callable[[TriggerEvidence], TriggerDecision | None]
# Of the decision that a person answers and the seq of the last vote.
AnswerRule = Callable[[TriggerDecision, int], TriggerDecision]
PIPELINE = "pipeline"  # the actor of what nobody did by hand
MAX_ATTEMPTS = 3
OPEN_STATES = ("pending", "submitted")


class Decisions:
    """A fire goes pending → submitted → succeeded or failed, and back to pending by `retry`; a hold
    stays held.

    Any process may repeat a transition: one that happened already is ignored.
    """

    def __init__(self, database: Database):
        self._database = database

    def decide(
        self,
        rule: Rule,
        *,
        now: datetime,
        champion: str | None,
        up_to_seq: int | None = None,
    ) -> TriggerDecision | None:
        """Call `rule` with the events since the last fire, store its decision and claim the open
        events, in one transaction.

        The same transaction records the change of taste that a fire decision dates.

        With `up_to_seq` the decision is that of a replayed day: `now` is its end, and votes above
        that seq are unknown.

        Returns None if there is neither an open nor a held event, or if the rule decides nothing. A
        hold without an open event claims nothing: it is returned with decision_id None and not
        stored. `rule` must not use the store.
        """
        with audited_transaction(self._database) as (connection, ledger):
            known_seq = ledger.vote_seq if up_to_seq is None else up_to_seq
            evidence = self._build_evidence(
                connection,
                known_seq,
                now,
                champion,
                is_replayed=up_to_seq is not None,
            )
            if not evidence.open_events and not evidence.held_events:
                return None
            decision = rule(evidence)
            if decision is None:
                return None
            state = "pending" if decision.action == "fire" else "held"
            decision = decision.model_copy(
                update={"state": state, "attempt": 1, "run_id": None, "decision_id": None}
            )
            is_answer = decision.action == "fire" or decision.remedy is not None
            if not is_answer and not evidence.open_events:
                return decision
            return self._store(connection, ledger, decision, known_seq)

    def read_evidence(
        self, *, now: datetime, champion: str | None, up_to_seq: int | None = None
    ) -> TriggerEvidence:
        """What `decide` would hand to its rule now; nothing is stored or claimed."""
        with self._database.read_transaction() as connection:
            newest = select(func.max(votes.c.seq))
            last_seq = connection.execute(newest).scalar() or 0
            return self._build_evidence(
                connection,
                last_seq if up_to_seq is None else up_to_seq,
                now,
                champion,
                is_replayed=up_to_seq is not None,
            )

    def fire_by_hand(
        self,
        reason: str,
        *,
        actor: str,
        now: datetime,
        run_id: str | None = None,
        quarantine: Quarantine | None = None,
    ) -> TriggerDecision:
        """Store a fire decision made by a person, over all votes: a retraining, or a quarantine. It
        claims no events and starts no cool-down: a change that detectors find is still decided on
        by the trigger.

        Without `run_id` it waits for a run, as every fire decision. With `run_id` that run is
        recorded, and a repeated call returns the decision that is stored. Raises StoreError for a
        quarantine of somebody without a vote that it leaves out.
        """
        with audited_transaction(self._database) as (connection, ledger):
            known = self._of_run(connection, run_id)
            if known is not None:
                return known
            evidence: dict[str, Any] = {"looked_at": {"max_seq": ledger.vote_seq}}
            if quarantine is not None:
                self._require_votes(connection, quarantine)
                evidence["quarantine"] = quarantine.model_dump(mode="json")
            decision = TriggerDecision(
                action="fire",
                reasons=(f"by hand: {reason}",),
                event_ids=(),
                evidence=evidence,
                decided_at=now,
                state="submitted" if run_id else "pending",
                run_id=run_id,
                actor=actor,
                remedy=None if quarantine is None else "quarantine",
            )
            return self._store(connection, ledger, decision, ledger.vote_seq)

    def order(
        self, order: TrainingOrder, *, reason: str, actor: str, now: datetime
    ) -> tuple[TriggerDecision, bool]:
        """Store a fire decision that orders a training job, and True; the known one and False for
        the same key, or without a key for the same parameters while that job is open.

        Raises IdempotencyConflict for a known key with other parameters.
        """
        with audited_transaction(self._database) as (connection, ledger):
            known = self._find_order(connection, order)
            if known is not None:
                return known, False
            decision = TriggerDecision(
                action="fire",
                reasons=(f"by hand: {reason}",),
                event_ids=(),
                evidence={
                    "looked_at": {"max_seq": ledger.vote_seq},
                    "order": order.model_dump(mode="json"),
                },
                decided_at=now,
                state="pending",
                actor=actor,
            )
            return self._store(connection, ledger, decision, ledger.vote_seq), True

    def find_order(self, order: TrainingOrder) -> TriggerDecision | None:
        """The decision that `order` would return as known, if any; raises as it does."""
        with self._database.read_transaction() as connection:
            return self._find_order(connection, order)

    def cancel(
        self, decision_id: int, *, reason: str, actor: str, now: datetime
    ) -> TriggerDecision:
        """Cancel an ordered training job by a hold decision that answers it: no run starts any
        more, and one that has started sees the decision and ends. A repeated call returns the
        first decision.

        Raises StoreError for a decision that ordered no job, and for a job that has ended.
        """
        with audited_transaction(self._database) as (connection, ledger):
            row = self._get_row(connection, decision_id)
            if given := self._find_answer(connection, decision_id):
                return given
            job = _build_decision(row)
            if job.order is None or job.state not in OPEN_STATES:
                problem = (
                    f"Decision {decision_id} did not order a training job."
                    if job.order is None
                    else f"Job {decision_id} has already {job.state}."
                )
                raise StoreError(f"{problem} `rlhf policy jobs` lists the jobs.")
            at = decisions.c.decision_id == decision_id
            ended = {"state": "failed", "error": f"cancelled by {actor}: {reason}"}
            connection.execute(decisions.update().where(at).values(ended))
            self._link(ledger, self._get_row(connection, decision_id), actor)
            cancellation = TriggerDecision(
                action="hold",
                reasons=(f"by hand: cancels job {decision_id}: {reason}",),
                event_ids=(),
                decided_at=now,
                state="held",
                actor=actor,
                answers=decision_id,
            )
            return self._store(connection, ledger, cancellation, ledger.vote_seq)

    def find_cancellation(self, decision_id: int) -> TriggerDecision | None:
        """The decision by which a person cancelled this one, if any."""
        with self._database.read_transaction() as connection:
            return self._find_answer(connection, decision_id)

    def answer(self, decision_id: int, rule: AnswerRule) -> TriggerDecision:
        """Store what a person decides about a decision: one answer each. Raises NotFound for an
        unknown decision, StoreError for one that was answered before.
        """
        with audited_transaction(self._database) as (connection, ledger):
            answered = _build_decision(self._get_row(connection, decision_id))
            if given := self._find_answer(connection, decision_id):
                raise StoreError(
                    f"Decision {decision_id} was answered already, by decision "
                    f"{given.decision_id}. `rlhf triggers explain {given.decision_id}` says how."
                )
            return self._store(connection, ledger, rule(answered, ledger.vote_seq), ledger.vote_seq)

    def fires(self) -> list[TriggerDecision]:
        """All fire decisions, oldest first."""
        return self._read(decisions.c.action == "fire")

    def pending_fires(self) -> list[TriggerDecision]:
        """Fire decisions waiting for a run, oldest first."""
        return self._read(decisions.c.state == "pending")

    def submitted_fires(self) -> list[TriggerDecision]:
        """Fire decisions whose run was found and has not ended, oldest first."""
        return self._read(decisions.c.state == "submitted")

    def failed_orders(self) -> list[TriggerDecision]:
        """Orders of training jobs that failed or were cancelled, oldest first."""
        failed = self._read(decisions.c.state == "failed")
        return [each for each in failed if each.order is not None]

    def lease(self, decision_id: int, attempt: int, *, now: datetime, lease: timedelta) -> bool:
        """Whether the caller may submit this attempt now; if so, nobody else may until `lease` has
        passed.

        False if the attempt is not pending or another process is submitting it.
        """
        with self._database.write_transaction() as connection:
            free = or_(decisions.c.leased_until.is_(None), decisions.c.leased_until <= now)
            this = (
                decisions.c.decision_id == decision_id,
                decisions.c.attempt == attempt,
                decisions.c.state == "pending",
            )
            taken = decisions.update().where(*this, free).values(leased_until=now + lease)
            return connection.execute(taken).rowcount == 1

    def all(self) -> list[TriggerDecision]:
        return self._read()

    def held_with_remedy(self) -> list[TriggerDecision]:
        """Hold decisions about a confirmed change, oldest first: those left to people, and those
        that dismissed it.
        """
        has_remedy = decisions.c.record.contains('"remedy":"')
        return self._read(decisions.c.action == "hold", has_remedy)

    def since(self, moment: datetime) -> list[TriggerDecision]:
        """Those decided at `moment` or later, oldest first."""
        return self._read(decisions.c.decided_at >= moment)

    def latest(self, action: str | None = None) -> TriggerDecision | None:
        """With an action, the newest one of that action."""
        of_action = () if action is None else (decisions.c.action == action,)
        wanted = (
            select(decisions).where(*of_action).order_by(decisions.c.decision_id.desc()).limit(1)
        )
        rows = self._database.fetch_mappings(wanted)
        return _build_decision(rows[0]) if rows else None

    def get(self, decision_id: int) -> TriggerDecision:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            return _build_decision(self._get_row(connection, decision_id))

    def page(self, *, before_id: int | None = None, limit: int = 50) -> list[TriggerDecision]:
        """Newest first."""
        wanted = select(decisions).order_by(decisions.c.decision_id.desc()).limit(limit)
        if before_id is not None:
            wanted = wanted.where(decisions.c.decision_id < before_id)
        return [_build_decision(row) for row in self._database.fetch_mappings(wanted)]

    def find_answers(self) -> dict[int, int]:
        """For each decision that a person answered, lifted or cancelled: the decision that did."""
        # records are compact JSON; those without an answer are not parsed
        names_one = decisions.c.record.contains('"answers":')
        names_none = decisions.c.record.contains('"answers":null')
        return {
            each.answers: each.stored_id
            for each in self._read(names_one, ~names_none)
            if each.answers is not None
        }

    def last_error(self, decision_id: int) -> str | None:
        """The error of the last attempt, if it failed."""
        error = select(decisions.c.error).where(decisions.c.decision_id == decision_id)
        return self._database.fetch_scalar(error)

    def mark_submitted(self, decision_id: int, attempt: int, run_id: str) -> TriggerDecision:
        """Record the run of this attempt. Ignored for an attempt that has ended or was submitted
        before.
        """

        def submit(row: RowMapping) -> dict[str, Any]:
            return (
                {"state": "submitted", "run_id": run_id}
                if row["state"] == "pending" and row["attempt"] == attempt
                else {}
            )

        return self._change_state(decision_id, submit)

    def mark_finished(
        self,
        decision_id: int,
        *,
        succeeded: bool,
        error: str | None = None,
        attempt: int | None = None,
    ) -> TriggerDecision:
        """Record the end of the run. Success is final; a failure may still become a success if a
        run believed dead ends well.

        With `attempt`, reports of an earlier attempt are ignored.
        """

        def finish(row: RowMapping) -> dict[str, Any]:
            stale = attempt is not None and attempt != row["attempt"]
            if stale or row["state"] in ("held", "succeeded"):
                return {}
            return (
                {"state": "succeeded", "error": None}
                if succeeded
                else {"state": "failed", "error": error}
            )

        return self._change_state(decision_id, finish)

    def retry(
        self, decision_id: int, *, max_attempts: int = MAX_ATTEMPTS, attempt: int | None = None
    ) -> TriggerDecision:
        """Make the decision pending again for the next attempt; failed for good after
        `max_attempts`.

        Only from submitted or failed. With `attempt`, only while that attempt is the current one,
        so that two processes that see the same dead run start one new attempt.
        """

        def retry_or_fail(row: RowMapping) -> dict[str, Any]:
            stale = attempt is not None and attempt != row["attempt"]
            if stale or row["state"] not in ("submitted", "failed"):
                return {}
            if row["attempt"] >= max_attempts:
                return {
                    "state": "failed",
                    "error": row["error"] or f"{max_attempts} attempts were made",
                }
            return {
                "state": "pending",
                "attempt": row["attempt"] + 1,
                "run_id": None,
                "leased_until": None,
            }

        return self._change_state(decision_id, retry_or_fail)

    def _build_evidence(
        self,
        connection: Connection,
        known_seq: int,
        now: datetime,
        champion: str | None,
        *,
        is_replayed: bool,
    ) -> TriggerEvidence:
        last = self._last_fire(connection)
        open_events, held_events = (
            tuple(read_events(connection, which)) for which in (IS_OPEN, self._is_held(connection))
        )
        dismissed = self._list_dismissed(connection) if held_events else set()
        held_events = tuple(each for each in held_events if each.event_id not in dismissed)
        unfinished = [
            _build_decision(row)
            for row in connection.execute(
                select(decisions).where(decisions.c.state.in_(OPEN_STATES))
            ).mappings()
        ]
        n_ordered = sum(each.order is not None for each in unfinished)
        return TriggerEvidence(
            champion=champion,
            open_events=open_events,
            held_events=held_events,
            # On a replayed day, a fire of a later day starts no cool-down.
            last_fired_at=last.decided_at
            if last and not (is_replayed and last.decided_at > now)
            else None,
            # Without events the rule is not called, so nothing is counted.
            n_new_votes=_count_trainable(connection, last.max_seq if last else 0, known_seq)
            if open_events or held_events
            else 0,
            max_seq=known_seq,
            n_unfinished=len(unfinished) - n_ordered,
            n_ordered=0 if is_replayed else n_ordered,
            left_to_people=self._read_left_to_people(connection, champion),
            now=now,
        )

    def _last_fire(self, connection: Connection) -> Row[Any] | None:
        """The trigger's last fire decision; those by hand start no cool-down."""
        return self._find_last(connection, lambda each: each.action == "fire")

    def _last_response(self, connection: Connection) -> Row[Any] | None:
        """The trigger's last decision that fired or left a change to people."""
        return self._find_last(
            connection,
            lambda each: each.action == "fire" or each.remedy not in (None, "dismiss"),
        )

    def _find_last(
        self, connection: Connection, is_wanted: Callable[[TriggerDecision], bool]
    ) -> Row[Any] | None:
        """The last such decision of the trigger itself."""
        known = select(decisions)
        for row in connection.execute(known.order_by(decisions.c.decision_id.desc())):
            decision = _build_decision(row._mapping)
            if decision.actor is None and is_wanted(decision):
                return row
        return None

    def _is_held(self, connection: Connection) -> ColumnElement[bool]:
        """Of events claimed by holds since the trigger last fired or left a change to people; what
        people decide by hand ends no hold.
        """
        last = self._last_response(connection)
        return drift_events.c.decision_id > (last.decision_id if last else 0)

    def _list_dismissed(self, connection: Connection) -> set[str]:
        """The events of false alarms since the trigger's last response."""
        last = self._last_response(connection)
        since = select(decisions).where(
            decisions.c.decision_id > (last.decision_id if last else 0),
        )
        known = (_build_decision(row) for row in connection.execute(since).mappings())
        return {name for each in known if each.remedy == "dismiss" for name in each.event_ids}

    def _find_answer(self, connection: Connection, decision_id: int) -> TriggerDecision | None:
        later = select(decisions).where(decisions.c.decision_id > decision_id)
        given = (_build_decision(row) for row in connection.execute(later).mappings())
        return next((each for each in given if each.answers == decision_id), None)

    def _find_order(self, connection: Connection, order: TrainingOrder) -> TriggerDecision | None:
        fires = select(decisions).where(decisions.c.action == "fire")
        for row in connection.execute(fires.order_by(decisions.c.decision_id)).mappings():
            each = _build_decision(row)
            if each.order is None:
                continue
            is_same = each.order.stages == order.stages
            if order.key is not None and each.order.key == order.key:
                if is_same:
                    return each
                raise IdempotencyConflict(
                    f"The key {order.key!r} is that of job {each.decision_id}, which has other "
                    "parameters. Choose another key."
                )
            if order.key is None and is_same and each.state in OPEN_STATES:
                return each
        return None

    def _read_left_to_people(
        self, connection: Connection, champion: str | None
    ) -> LeftToPeople | None:
        row = self._last_response(connection)
        if row is None or row.action == "fire":
            return None
        left = _build_decision(row._mapping)
        if left.evidence.get("looked_at", {}).get("champion") != champion:
            return None
        answer = self._find_answer(connection, row.decision_id)
        quarantines = answer is not None and answer.remedy == "quarantine"
        return LeftToPeople(
            decision_id=row.decision_id,
            seq=row.max_seq,
            is_answered=answer is not None,
            reread_from=answer.decided_at if answer and quarantines else None,
        )

    def _store(
        self, connection: Connection, ledger: Ledger, decision: TriggerDecision, known_seq: int
    ) -> TriggerDecision:
        number = self._database.next_number(connection, decisions.c.decision_id)
        decision = decision.model_copy(update={"decision_id": number})
        record = json_of(decision, "The retraining decision")
        columns = decision.model_dump(
            include={"decision_id", "action", "state", "attempt", "run_id", "decided_at"}
        )
        row = {
            **columns,
            "max_seq": known_seq,
            "leased_until": None,
            "error": None,
            "record": record,
        }
        self._database.insert(connection, decisions, [row])
        if decision.actor is None:
            claimed = drift_events.update().where(IS_OPEN)
            connection.execute(claimed.values(decision_id=decision.decision_id))
        self._link(ledger, row, decision.actor or PIPELINE)
        if decision.action == "fire" and decision.change_seq is not None:
            record_change(
                self._database,
                connection,
                ledger,
                change_seq=decision.change_seq,
                cause="; ".join(decision.reasons),
                actor=decision.actor or PIPELINE,
                category=decision.evidence.get("category"),
                decision_id=decision.decision_id,
            )
        return decision

    def _change_state(
        self, decision_id: int, change: Callable[[RowMapping], dict[str, Any]]
    ) -> TriggerDecision:
        with audited_transaction(self._database) as (connection, ledger):
            row = self._get_row(connection, decision_id)
            changed = {name: value for name, value in change(row).items() if row[name] != value}
            if not changed:
                return _build_decision(row)
            at = decisions.c.decision_id == decision_id
            connection.execute(decisions.update().where(at).values(changed))
            moved = self._get_row(connection, decision_id)
            self._link(ledger, moved)
            return _build_decision(moved)

    def _link(self, ledger: Ledger, row: Mapping[Any, Any], actor: str = PIPELINE) -> None:
        ledger.append(
            actor=actor,
            action=f"decision.{row['state']}",
            object_id=str(row["decision_id"]),
            digest=row_digest(decisions, row),
        )

    def _require_votes(self, connection: Connection, quarantine: Quarantine) -> None:
        found = select(votes.c.annotator_id).where(
            votes.c.annotator_id.in_(quarantine.annotator_ids),
            votes.c.seq >= quarantine.from_seq,
        )
        found = found.distinct()
        missing = set(quarantine.annotator_ids) - set(connection.execute(found).scalars())
        if missing:
            raise StoreError(
                f"{', '.join(sorted(missing))}: no vote from {quarantine.from_seq} on. "
                "`rlhf votes annotators` lists the annotators."
            )

    def _of_run(self, connection: Connection, run_id: str | None) -> TriggerDecision | None:
        if run_id is None:
            return None
        wanted = select(decisions).where(decisions.c.run_id == run_id)
        row = connection.execute(wanted).mappings().one_or_none()
        return None if row is None else _build_decision(row)

    def _get_row(self, connection: Connection, decision_id: int) -> RowMapping:
        wanted = select(decisions).where(decisions.c.decision_id == decision_id)
        row = connection.execute(wanted).mappings().one_or_none()
        if row is None:
            raise NotFound(f"There is no decision {decision_id}. Correct the id.")
        return row

    def _read(self, *conditions: Any) -> list[TriggerDecision]:
        wanted = select(decisions).where(*conditions).order_by(decisions.c.decision_id)
        return [_build_decision(row) for row in self._database.fetch_mappings(wanted)]


def _count_trainable(connection: Connection, after: int, until: int) -> int:
    """Votes with a seq above `after` and up to `until`: no machine's, no skips, no superseded
    ones.
    """
    of_range = (votes.c.seq > after, votes.c.seq <= until)
    replaced = votes.alias("replaced")
    # Queried from the few that supersede: looking for a successor of each vote takes twice as long.
    gone = (
        select(func.count())
        .select_from(votes)
        .join(replaced, supersedes(votes, replaced))
        .where(
            *of_range,
            votes.c.supersedes.is_not(None),
            replaced.c.seq > after,
            is_trainable(replaced),
        )
    )
    cast = select(func.count()).select_from(votes).where(*of_range, is_trainable(votes))
    n_cast, n_gone = (connection.execute(wanted).scalar_one() for wanted in (cast, gone))
    return n_cast - n_gone


def is_trainable(table: Any) -> ColumnElement[bool]:
    # Votes of the reward model itself, and skips, are no reason to train it again.
    return and_(
        table.c.annotator_kind != AnnotatorKind.MACHINE.value, table.c.choice != Choice.SKIP.value
    )


def _build_decision(row: RowMapping) -> TriggerDecision:
    """The decision as recorded, in its current state."""
    current = {name: row[name] for name in ("decision_id", "state", "attempt", "run_id")}
    return TriggerDecision.from_json(row["record"]).model_copy(update=current)
