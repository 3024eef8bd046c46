"""Stored requests by idempotency key: a repeated request gets the stored answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, select

from rlhf_pipeline.errors import AlreadyRunning, IdempotencyConflict
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import requests

KEPT_FOR = timedelta(days=7)
GIVEN_UP_AFTER = timedelta(seconds=60)  # a request whose process died may be sent again after this


@dataclass(frozen=True)
class StoredResponse:
    """An answer: HTTP status and body."""

    status: int
    body: str


class Requests:
    """Call `begin`, then do the work within `answer_transaction`, or call `finish` after work that
    may safely be done twice.

    Votes need neither: their own key is stored with them.
    """

    def __init__(self, database: Database):
        self._database = database

    def begin(self, principal: str, key: str, request_hash: str) -> StoredResponse | None:
        """The stored answer of an answered request; None to do the work.

        Raises IdempotencyConflict for another request under the same key, AlreadyRunning while the
        same request is being processed.
        """
        now = self._database.clock.now()
        this = self._is_request(principal, key)
        with self._database.write_transaction() as connection:
            connection.execute(requests.delete().where(requests.c.expires_at <= now))
            row = connection.execute(select(requests).where(this)).one_or_none()
            if row is None:
                new = {
                    "principal": principal,
                    "idempotency_key": key,
                    "request_hash": request_hash,
                    "status": None,
                    "answer": None,
                    "started_at": now,
                    "expires_at": now + KEPT_FOR,
                }
                self._database.insert(connection, requests, [new])
                return None
            if row.request_hash != request_hash:
                raise IdempotencyConflict(
                    f"Idempotency key {key!r} already belongs to another request. Send a new key, "
                    "or repeat the first one unchanged."
                )
            if row.status is not None:
                return StoredResponse(row.status, row.answer)
            if now - row.started_at < GIVEN_UP_AFTER:
                raise AlreadyRunning(
                    f"The request with idempotency key {key!r} is being answered. Send it again in "
                    "a second."
                )
            connection.execute(requests.update().where(this).values(started_at=now))
        return None

    @contextmanager
    def answer_transaction(
        self, principal: str, key: str
    ) -> Iterator[Callable[[StoredResponse], None]]:
        """Run the work and store its answer in one transaction.

        A request repeated after a crash was done and is answered, or was not done. Raises
        AlreadyRunning, and keeps nothing, if the request was given up and another process answered
        it meanwhile.
        """
        unanswered = and_(self._is_request(principal, key), requests.c.status.is_(None))
        with joint_transaction(self._database) as connection:

            def store_response(answer: StoredResponse) -> None:
                stored = (
                    requests.update()
                    .where(unanswered)
                    .values(status=answer.status, answer=answer.body)
                )
                if not connection.execute(stored).rowcount:
                    raise AlreadyRunning(
                        f"The request with idempotency key {key!r} was sent twice. Send it again "
                        "in a second."
                    )

            yield store_response

    def finish(self, principal: str, key: str, answer: StoredResponse) -> None:
        """Store the answer of a finished request."""
        with self._database.write_transaction() as connection:
            connection.execute(
                requests.update()
                .where(self._is_request(principal, key))
                .values(status=answer.status, answer=answer.body)
            )

    def forget(self, principal: str, key: str) -> None:
        """Delete a failed request, so that it can be repeated at once. An answered one stays."""
        with self._database.write_transaction() as connection:
            connection.execute(
                requests.delete().where(
                    self._is_request(principal, key), requests.c.status.is_(None)
                )
            )

    def _is_request(self, principal: str, key: str) -> ColumnElement[bool]:
        return and_(
            requests.c.principal == principal,
            requests.c.idempotency_key == key,
        )
