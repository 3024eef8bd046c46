"""Training jobs: the runs of fire decisions, and the jobs that people order by hand."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, or_, select

from rlhf_pipeline.core.errors import IdempotencyConflict, StoreError
from rlhf_pipeline.core.records import TrainingOrder, TriggerDecision
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.decisions import (
    OPEN_STATES,
    build_decision,
    decision_row,
    find_answer,
    link_decision,
    store_decision,
)
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import decisions

MAX_ATTEMPTS = 3


class TrainingJobs(Repository):
    """A fire goes pending → submitted → succeeded or failed, and back to pending by `retry`.

    Any process may repeat a transition: one that happened already is ignored.
    """

    def order(
        self, order: TrainingOrder, *, reason: str, actor: str, now: datetime
    ) -> tuple[TriggerDecision, bool]:
        """Store a fire decision that orders a training job, and True; the known one and False for
        the same key, or without a key for the same parameters while that job is open.

        Raises IdempotencyConflict for a known key with other parameters.
        """
        with audited_transaction(self._database) as (connection, ledger):
            earlier = self._find_order(connection, order)
            if earlier is not None:
                return earlier, False
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
            return store_decision(
                self._database, connection, ledger, decision, ledger.vote_seq
            ), True

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
            row = decision_row(connection, decision_id)
            if earlier := find_answer(connection, decision_id):
                return earlier
            job = build_decision(row)
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
            link_decision(ledger, decision_row(connection, decision_id), actor)
            cancellation = TriggerDecision(
                action="hold",
                reasons=(f"by hand: cancels job {decision_id}: {reason}",),
                event_ids=(),
                decided_at=now,
                state="held",
                actor=actor,
                answers=decision_id,
            )
            return store_decision(self._database, connection, ledger, cancellation, ledger.vote_seq)

    def find_cancellation(self, decision_id: int) -> TriggerDecision | None:
        """The decision by which a person cancelled this one, if any."""
        with self._database.read_transaction() as connection:
            return find_answer(connection, decision_id)

    def pending(self) -> list[TriggerDecision]:
        """Fire decisions waiting for a run, oldest first."""
        return self._read("pending")

    def submitted(self) -> list[TriggerDecision]:
        """Fire decisions whose run was found and has not ended, oldest first."""
        return self._read("submitted")

    def failed_orders(self) -> list[TriggerDecision]:
        """Orders of training jobs that failed or were cancelled, oldest first."""
        failed = self._read("failed")
        return [decision for decision in failed if decision.order is not None]

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
            update = decisions.update().where(*this, free).values(leased_until=now + lease)
            return connection.execute(update).rowcount == 1

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

    def postpone(
        self, decision_id: int, *, attempt: int, until_seq: int, reason: str
    ) -> TriggerDecision:
        """Let the decision, whose run of this attempt ends without a model, wait for vote
        `until_seq`; its next run reads the votes up to there. Ignored for an earlier attempt.
        """

        def wait(row: RowMapping) -> dict[str, Any]:
            if row["attempt"] != attempt or row["state"] not in OPEN_STATES:
                return {}
            decision = build_decision(row)
            waiting = decision.model_copy(
                update={
                    "reasons": (*decision.reasons, f"waits until vote {until_seq:,}: {reason}"),
                    "evidence": decision.evidence | {"wait_until_seq": until_seq},
                }
            )
            return {
                "state": "pending",
                "attempt": row["attempt"] + 1,
                "run_id": None,
                "leased_until": None,
                "record": json_of(waiting, "The retraining decision"),
            }

        return self._change_state(decision_id, wait)

    def _find_order(self, connection: Connection, order: TrainingOrder) -> TriggerDecision | None:
        fires = select(decisions).where(decisions.c.action == "fire")
        for row in connection.execute(fires.order_by(decisions.c.decision_id)).mappings():
            decision = build_decision(row)
            if decision.order is None:
                continue
            is_same = decision.order.stages == order.stages
            if order.key is not None and decision.order.key == order.key:
                if is_same:
                    return decision
                raise IdempotencyConflict(
                    f"The key {order.key!r} is that of job {decision.decision_id}, which has other "
                    "parameters. Choose another key."
                )
            if order.key is None and is_same and decision.state in OPEN_STATES:
                return decision
        return None

    def _change_state(
        self, decision_id: int, change: Callable[[RowMapping], dict[str, Any]]
    ) -> TriggerDecision:
        with audited_transaction(self._database) as (connection, ledger):
            row = decision_row(connection, decision_id)
            changed = {name: value for name, value in change(row).items() if row[name] != value}
            if not changed:
                return build_decision(row)
            at = decisions.c.decision_id == decision_id
            connection.execute(decisions.update().where(at).values(changed))
            moved = decision_row(connection, decision_id)
            link_decision(ledger, moved)
            return build_decision(moved)

    def _read(self, state: str) -> list[TriggerDecision]:
        query = select(decisions).where(decisions.c.state == state)
        rows = self._database.fetch_mappings(query.order_by(decisions.c.decision_id))
        return [build_decision(row) for row in rows]
