"""Requests by their idempotency key, so that one that is sent again is answered again and not done
again. Knows no HTTP.
"""

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
    """What was answered: an HTTP status and a body."""

    status: int
    body: str


class Requests:
    """`begin` before the work, then do it within `answer_transaction`; or `finish` after it, where
    doing it twice does no harm.

    Votes need neither: their own key is kept beside them.
    """

    def __init__(self, database: Database):
        self._database = database

    def begin(self, principal: str, key: str, request_hash: str) -> StoredResponse | None:
        """The stored answer of a request that was answered; None to go on and do it.

        Raises IdempotencyConflict for another request under the same key, AlreadyRunning while its
        twin is at work.
        """
        now = self._database.clock.now()
        this = self._is_request(principal, key)
        with self._database.write_transaction() as connection:
            connection.execute(
                requests.delete().where(
                    self._database.in_project(requests), requests.c.expires_at <= now
                )
            )
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
                    f"Idempotency key {key!r} already stands for another request. Send a new key, "
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
        """The acts within it and the answer to them, told to what it gives, are one transaction.

        A request that is sent again after a crash was done and is answered, or was not done. Raises
        AlreadyRunning, and keeps nothing, where it was taken for given up and somebody else was
        faster.
        """
        unanswered = and_(self._is_request(principal, key), requests.c.status.is_(None))
        with joint_transaction(self._database) as connection:

            def store_response(answer: StoredResponse) -> None:
                told = (
                    requests.update()
                    .where(unanswered)
                    .values(status=answer.status, answer=answer.body)
                )
                if not connection.execute(told).rowcount:
                    raise AlreadyRunning(
                        f"The request with idempotency key {key!r} was sent twice. Send it again "
                        "in a second."
                    )

            yield store_response

    def finish(self, principal: str, key: str, answer: StoredResponse) -> None:
        """Keep the answer of a request that was done."""
        with self._database.write_transaction() as connection:
            connection.execute(
                requests.update()
                .where(self._is_request(principal, key))
                .values(status=answer.status, answer=answer.body)
            )

    def forget(self, principal: str, key: str) -> None:
        """Forget a request that failed, so that it can be sent again at once. One that has its
        answer stays.
        """
        with self._database.write_transaction() as connection:
            connection.execute(
                requests.delete().where(
                    self._is_request(principal, key), requests.c.status.is_(None)
                )
            )

    def _is_request(self, principal: str, key: str) -> ColumnElement[bool]:
        return and_(
            self._database.in_project(requests),
            requests.c.principal == principal,
            requests.c.idempotency_key == key,
        )
