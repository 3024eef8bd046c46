"""API tokens, sessions and one-time logins, stored as SHA-256 with an expiry."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import Token, content_hash
from rlhf_pipeline.store.audit import audited_transaction, joint_transaction
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import failed_logins, tokens, users
from rlhf_pipeline.store.users import require_password, require_valid_token

TokenKind = Literal["api", "session", "login"]
PREFIX = "rlhf_"  # prefix that secret scanners recognise
# a write for each request would cost as much as the request
USE_IS_NOTED_EVERY = timedelta(minutes=1)
TRIES = 10  # wrong passwords in a row before the next attempt must wait
LONGEST_WAIT = timedelta(minutes=5)
FORGOTTEN_AFTER = timedelta(days=1)


class Tokens(Repository):
    """`issue` returns the secret once; afterwards nobody can read it from the store."""

    def issue(
        self,
        user_id: str,
        *,
        kind: TokenKind,
        lifetime: timedelta,
        actor: str,
        name: str | None = None,
        scopes: Sequence[str] | None = None,
        asked_by: str | None = None,
        password_hash: str | None = None,
    ) -> tuple[str, Token]:
        """Create a secret of 256 random bits and its stored token.

        `asked_by`: only while this token is valid; `password_hash`: only while it is the user's.
        Raises NotFound; LoginEnded if either ended meanwhile.
        """
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._database.clock.now()
        row = {
            "token_hash": _hash(secret),
            "user_id": user_id,
            "kind": kind,
            "name": name,
            "scopes": None if scopes is None else json.dumps(sorted(set(scopes))),
            "created_at": now,
            "expires_at": now + lifetime,
            "last_used_at": None,
            "revoked_at": None,
        }
        with audited_transaction(self._database) as (connection, ledger):
            query = select(users.c.user_id).where(users.c.user_id == user_id)
            if connection.execute(query).first() is None:
                raise NotFound(f"There is no user {user_id!r}. Add them first.")
            if asked_by is not None:
                require_valid_token(self._database, connection, asked_by)
            if password_hash is not None:
                require_password(connection, user_id, password_hash)
            self._database.insert(connection, tokens, [row])
            token = _build_token(row)
            digest = content_hash("tokens.issue", token.token_id, user_id, kind, row["scopes"])
            ledger.append(
                actor=actor, action=f"tokens.issue.{kind}", object_id=token.token_id, digest=digest
            )
        return secret, token

    def find(self, secret: str) -> Token | None:
        """The valid token of a secret: neither revoked nor expired, its owner not disabled."""
        token = self._find_valid(secret)
        if token is None:
            return None
        now = self._database.clock.now()
        if token.kind == "api" and (
            token.last_used_at is None or now - token.last_used_at > USE_IS_NOTED_EVERY
        ):
            with self._database.write_transaction() as connection:
                this = tokens.c.token_hash == _hash(secret)
                connection.execute(tokens.update().where(this).values(last_used_at=now))
        return token

    def exchange(self, secret: str, *, lifetime: timedelta) -> tuple[str, Token] | None:
        """A session for a one-time login in one transaction, or None if the login is not valid."""
        # callers are unauthenticated: only a valid login may wait for the write lock
        token = self._find_valid(secret)
        if token is None or token.kind != "login":
            return None
        with joint_transaction(self._database):
            login = self.redeem(secret)
            return (
                None
                if login is None
                else self.issue(
                    login.user_id, kind="session", lifetime=lifetime, actor=login.user_id
                )
            )

    def redeem(self, secret: str) -> Token | None:
        """`find` for a one-time login, which becomes invalid."""
        with audited_transaction(self._database) as (connection, ledger):
            this = and_(tokens.c.token_hash == _hash(secret), tokens.c.kind == "login")
            row = connection.execute(select(tokens).where(this)).mappings().one_or_none()
            now = self._database.clock.now()
            if row is None or row["revoked_at"] is not None or row["expires_at"] <= now:
                return None
            is_able = and_(users.c.user_id == row["user_id"], users.c.disabled_at.is_(None))
            if connection.execute(select(users.c.user_id).where(is_able)).first() is None:
                return None
            connection.execute(tokens.update().where(this).values(revoked_at=now, last_used_at=now))
            token = _build_token(dict(row))
            ledger.append(
                actor=token.user_id,
                action="tokens.redeem",
                object_id=token.token_id,
                digest=content_hash("tokens.redeem", token.token_id),
            )
        return token

    def of_user(
        self,
        user_id: str,
        *,
        kind: TokenKind | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Token]:
        """Newest first, expired ones too; with `before`, those that follow the token of that id.
        Raises NotFound if the user has no such token.
        """
        mine = tokens.c.user_id == user_id
        query = (
            select(tokens)
            .where(mine)
            .order_by(tokens.c.created_at.desc(), tokens.c.token_hash.desc())
            .limit(limit)
        )
        if kind is not None:
            query = query.where(tokens.c.kind == kind)
        with self._database.read_transaction() as connection:
            if before is not None:
                this = tokens.c.token_hash.startswith(before, autoescape=True)
                last = connection.execute(
                    select(tokens.c.created_at, tokens.c.token_hash).where(mine, this)
                ).first()
                if last is None:
                    raise NotFound(f"There is no token {before!r}.")
                is_same = and_(
                    tokens.c.created_at == last.created_at, tokens.c.token_hash < last.token_hash
                )
                query = query.where(or_(tokens.c.created_at < last.created_at, is_same))
            return [_build_token(dict(row)) for row in connection.execute(query).mappings()]

    def revoke(self, token_id: str, *, actor: str, user_id: str | None = None) -> None:
        """Make the token invalid from the next request on, with `user_id` only if it belongs to
        that user. Raises NotFound.
        """
        with audited_transaction(self._database) as (connection, ledger):
            query = select(tokens.c.token_hash).where(
                tokens.c.token_hash.startswith(token_id, autoescape=True)
            )
            if user_id is not None:
                query = query.where(tokens.c.user_id == user_id)
            hashes = connection.execute(query).scalars().all()
            if len(hashes) != 1 or len(token_id) < 12:
                raise NotFound(f"There is no token {token_id!r}. Nothing was revoked.")
            token_hash = hashes[0]
            connection.execute(
                tokens.update()
                .where(tokens.c.token_hash == token_hash, tokens.c.revoked_at.is_(None))
                .values(revoked_at=self._database.clock.now())
            )
            ledger.append(
                actor=actor,
                action="tokens.revoke",
                object_id=token_hash[:16],
                digest=content_hash("tokens.revoke", token_hash[:16]),
            )

    def _find_valid(self, secret: str) -> Token | None:
        with self._database.read_transaction() as connection:
            row = connection.execute(_OF_ENABLED, {"hash": _hash(secret)}).first()
        if (
            row is None
            or row.revoked_at is not None
            or row.expires_at <= self._database.clock.now()
        ):
            return None
        return _build_token(row._asdict())


class FailedLogins(Repository):
    """Counts wrong passwords in a row by a hash of account or origin: after ten, the wait doubles
    each time.
    """

    def wait_s(self, *who: str) -> float:
        """Seconds until `who` may try again; 0 if they may now."""
        with self._database.read_transaction() as connection:
            return self._wait_s(connection, self._database.clock.now(), who)

    def attempt(self, *who: str) -> float:
        """Count a try as failed before it is made, so that parallel tries do not bypass the limit;
        returns 0, or the seconds to wait. Call `forget` after a successful login.
        """
        now = self._database.clock.now()
        # callers are unauthenticated: those who must wait may not hold the write lock
        wait = self.wait_s(*who)
        if wait > 0:
            return wait
        with self._database.write_transaction() as connection:
            wait = self._wait_s(connection, now, who)
            if wait > 0:
                return wait
            old = failed_logins.c.last_failed_at < now - FORGOTTEN_AFTER
            connection.execute(failed_logins.delete().where(old))
            for subject_hash in sorted({_hash(name) for name in who}):
                this = failed_logins.c.subject_hash == subject_hash
                n = connection.execute(select(failed_logins.c.n_failed).where(this)).scalar()
                if n is None:
                    row = {"subject_hash": subject_hash, "n_failed": 1, "last_failed_at": now}
                    self._database.insert(connection, failed_logins, [row])
                else:
                    connection.execute(
                        failed_logins.update()
                        .where(this)
                        .values(n_failed=n + 1, last_failed_at=now)
                    )
        return 0.0

    def forget(self, *who: str) -> None:
        """Reset the counts after a successful login."""
        with self._database.write_transaction() as connection:
            connection.execute(failed_logins.delete().where(_is_among(who)))

    def _wait_s(self, connection: Connection, now: datetime, who: Sequence[str]) -> float:
        rows = connection.execute(select(failed_logins).where(_is_among(who))).all()
        return max((_wait_after(r.n_failed, r.last_failed_at, now) for r in rows), default=0.0)


def _is_among(who: Sequence[str]) -> ColumnElement[bool]:
    return failed_logins.c.subject_hash.in_([_hash(name) for name in who])


_OF_ENABLED = (  # queried twice a second for each active user
    select(tokens)
    .join(users, users.c.user_id == tokens.c.user_id)
    .where(tokens.c.token_hash == bindparam("hash"), users.c.disabled_at.is_(None))
)


def _wait_after(n_failed: int, last: datetime, now: datetime) -> float:
    # `last` may be after `now`: of concurrent attempts, one may be written before one that
    # began earlier
    if n_failed < TRIES:
        return 0.0
    wait: timedelta = timedelta(seconds=30) * int(2 ** min(10, n_failed - TRIES))
    return max(0.0, (last + min(LONGEST_WAIT, wait) - now).total_seconds())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _build_token(row: dict[str, Any]) -> Token:
    values = {name: row[name] for name in Token.model_fields if name not in ("token_id", "scopes")}
    return Token(
        token_id=row["token_hash"][:16],
        scopes=None if row["scopes"] is None else tuple(json.loads(row["scopes"])),
        **values,
    )
