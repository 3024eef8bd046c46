"""Users and their roles. E-mail and name are stored in this table alone; passwords come hashed."""

import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select

from rlhf_pipeline.core.errors import ConfigurationError, LoginEnded, NotFound
from rlhf_pipeline.core.records import Role, User, content_hash
from rlhf_pipeline.store.audit import Ledger, audited_transaction
from rlhf_pipeline.store.card_draw import ANYBODY, IS_UNFINISHED
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database, Repository
from rlhf_pipeline.store.schema import offers, role_grants, tokens, users

# roles that vote, as `web.permissions` has them
VOTERS = frozenset({Role.ANNOTATOR, Role.CURATOR, Role.ADMIN})


class Users(Repository):
    """Every change is an act in the audit chain, in the change's own transaction. Users are
    disabled, never removed.
    """

    def add(
        self,
        *,
        email: str,
        name: str,
        roles: Iterable[Role] = (),
        kind: str = "person",
        password_hash: str | None = None,
        actor: str,
    ) -> User:
        """Add a user. Raises ConfigurationError for an e-mail address that is invalid or taken."""
        email = _normalize_email(email)
        user_id = f"u{secrets.token_hex(8)}"
        row = {
            "user_id": user_id,
            "email": email,
            "name": name.strip() or email,
            "kind": kind,
            "password_hash": password_hash,
            "created_at": self._database.clock.now(),
            "disabled_at": None,
            "paused_at": None,
        }
        with audited_transaction(self._database) as (connection, ledger):
            if self._read_users(connection, users.c.email == email):
                raise ConfigurationError(
                    f"There is a user with e-mail {email!r} already. Give them a role, or use "
                    "another address."
                )
            self._database.insert(connection, users, [row])
            self._record_change(ledger, actor, "users.add", user_id, {"kind": kind})
            self._replace_roles(connection, ledger, user_id, set(roles), actor)
            return self._read_user(connection, user_id)

    def get(self, user_id: str) -> User:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            return self._read_user(connection, user_id)

    def with_email(self, email: str) -> User | None:
        """Raises ConfigurationError for an invalid address."""
        with self._database.read_transaction() as connection:
            matches = self._read_users(connection, users.c.email == _normalize_email(email))
        return matches[0] if matches else None

    def password_hash(self, user_id: str) -> str | None:
        query = select(users.c.password_hash).where(users.c.user_id == user_id)
        return self._database.fetch_scalar(query)

    def all(self) -> list[User]:
        """Sorted by e-mail."""
        with self._database.read_transaction() as connection:
            return self._read_users(connection)

    def page(self, *, after: str | None = None, limit: int) -> list[User]:
        """Sorted by e-mail, those after the user of an id. Raises NotFound if there is no such
        user.
        """
        with self._database.read_transaction() as connection:
            following: tuple[ColumnElement[bool], ...] = ()
            if after is not None:
                last = self._read_user(connection, after)
                is_same = and_(users.c.email == last.email, users.c.user_id > last.user_id)
                following = (or_(users.c.email > last.email, is_same),)
            return self._read_users(connection, *following, limit=limit)

    def count(self) -> int:
        return self._database.count(users)

    def set_password(
        self,
        user_id: str,
        password_hash: str | None,
        *,
        actor: str,
        asked_by: str | None = None,
        instead_of: str | None = None,
    ) -> None:
        """Set the password and end all sessions of the user. Raises NotFound; LoginEnded if the
        token `asked_by` is no longer valid, or `instead_of` is no longer the hash of their
        password.
        """
        with audited_transaction(self._database) as (connection, ledger):
            self._read_user(connection, user_id)
            if asked_by is not None:
                require_valid_token(self._database, connection, asked_by)
            if instead_of is not None:
                require_password(connection, user_id, instead_of)
            self._update(connection, user_id, {"password_hash": password_hash})
            self._revoke_all(connection, user_id, kind="session")
            self._record_change(ledger, actor, "users.set_password", user_id, {})

    def pause(self, user_id: str, *, is_paused: bool, reason: str, actor: str) -> User:
        """Keep a user from voting, or let them vote again; they can log in meanwhile. Raises
        NotFound.
        """
        with audited_transaction(self._database) as (connection, ledger):
            user = self._read_user(connection, user_id)
            if is_paused != (user.paused_at is not None):
                at = self._database.clock.now() if is_paused else None
                self._update(connection, user_id, {"paused_at": at})
                action = "users.pause" if is_paused else "users.resume"
                self._record_change(ledger, actor, action, user_id, {"reason": reason})
            user = self._read_user(connection, user_id)
            self._open_reserved_offers(connection, ledger, user, actor)
            return user

    def change(
        self,
        user_id: str,
        *,
        name: str | None = None,
        roles: Iterable[Role] | None = None,
        disabled: bool | None = None,
        actor: str,
    ) -> User:
        """Change all of it or nothing; None leaves a value as it is. Returns the changed user.

        Raises NotFound; ConfigurationError for an empty name, and if no admin would be left.
        """
        with audited_transaction(self._database) as (connection, ledger):
            user = self._read_user(connection, user_id)
            had_admin = self._has_admin(connection)
            if name is not None and name.strip() != user.name:
                if not name.strip():
                    raise ConfigurationError(
                        "The name is blank. Write at least one other character."
                    )
                self._update(connection, user_id, {"name": name.strip()})
                self._record_change(ledger, actor, "users.rename", user_id, {})
            if roles is not None:
                self._replace_roles(connection, ledger, user_id, set(roles), actor)
            if disabled is not None and disabled != (user.disabled_at is not None):
                self._set_disabled(connection, ledger, user_id, disabled, actor)
            if had_admin and not self._has_admin(connection):
                raise ConfigurationError(
                    "This is the last admin; without one nobody can add users. Make another user "
                    "admin first."
                )
            user = self._read_user(connection, user_id)
            self._open_reserved_offers(connection, ledger, user, actor)
            return user

    def _open_reserved_offers(
        self, connection: Connection, ledger: Ledger, user: User, actor: str
    ) -> None:
        """Open the offers to anybody that only a user who may no longer vote would be dealt."""
        may_vote = user.disabled_at is None and user.paused_at is None
        if may_vote and VOTERS & set(user.roles):
            return
        reserved = offers.update().where(offers.c.reserved_for == user.user_id, IS_UNFINISHED)
        n = connection.execute(reserved.values(reserved_for=ANYBODY)).rowcount
        if n:
            ledger.append(
                actor=actor,
                action="comparisons.unname",
                object_id=f"{n} judgements of {user.user_id}",
                digest=content_hash(user.user_id, n),
            )

    def _replace_roles(
        self, connection: Connection, ledger: Ledger, user_id: str, new_roles: set[Role], actor: str
    ) -> None:
        """Set exactly these roles."""
        has = set(self._read_roles(connection, [user_id]).get(user_id, ()))
        for role in sorted(has - new_roles):
            connection.execute(
                role_grants.delete().where(
                    role_grants.c.user_id == user_id, role_grants.c.role == role.value
                )
            )
            self._record_change(ledger, actor, "roles.revoke", user_id, {"role": role.value})
        new = sorted(new_roles - has)
        grant = {"user_id": user_id, "granted_at": self._database.clock.now(), "granted_by": actor}
        rows = [{**grant, "role": role.value} for role in new]
        self._database.insert(connection, role_grants, rows)
        for role in new:
            self._record_change(ledger, actor, "roles.grant", user_id, {"role": role.value})

    def _set_disabled(
        self, connection: Connection, ledger: Ledger, user_id: str, disabled: bool, actor: str
    ) -> None:
        if disabled:
            self._revoke_all(connection, user_id)
        self._update(
            connection, user_id, {"disabled_at": self._database.clock.now() if disabled else None}
        )
        self._record_change(
            ledger, actor, "users.disable" if disabled else "users.enable", user_id, {}
        )

    def _update(self, connection: Connection, user_id: str, values: dict[str, Any]) -> None:
        connection.execute(users.update().where(users.c.user_id == user_id).values(values))

    def _revoke_all(self, connection: Connection, user_id: str, kind: str | None = None) -> None:
        of_user = and_(
            tokens.c.user_id == user_id,
            tokens.c.revoked_at.is_(None),
        )
        of_kind = () if kind is None else (tokens.c.kind == kind,)
        connection.execute(
            tokens.update().where(of_user, *of_kind).values(revoked_at=self._database.clock.now())
        )

    def _read_user(self, connection: Connection, user_id: str) -> User:
        row = connection.execute(_SELECT_USER, {"user": user_id}).first()
        if row is None:
            raise NotFound(f"There is no user {user_id!r}. `rlhf users list` names them.")
        roles = [
            Role(grant.role) for grant in connection.execute(_SELECT_ROLES, {"user": user_id}).all()
        ]
        return _build_user(row._asdict(), roles)

    def _has_admin(self, connection: Connection) -> bool:
        able = select(users.c.user_id).where(users.c.disabled_at.is_(None))
        admins = select(role_grants.c.user_id).where(
            role_grants.c.role == Role.ADMIN.value, role_grants.c.user_id.in_(able)
        )
        return connection.execute(admins.limit(1)).first() is not None

    def _read_users(
        self, connection: Connection, *conditions: Any, limit: int | None = None
    ) -> list[User]:
        query = (
            select(users).where(*conditions).order_by(users.c.email, users.c.user_id).limit(limit)
        )
        rows = connection.execute(query).mappings().all()
        roles = self._read_roles(connection, [row["user_id"] for row in rows])
        return [_build_user(dict(row), roles.get(row["user_id"], ())) for row in rows]

    def _read_roles(self, connection: Connection, user_ids: Sequence[str]) -> dict[str, list[Role]]:
        roles: dict[str, list[Role]] = {}
        for ids in batches(user_ids, MAX_ROWS):
            query = select(role_grants.c.user_id, role_grants.c.role)
            for grant in connection.execute(query.where(role_grants.c.user_id.in_(ids))):
                roles.setdefault(grant.user_id, []).append(Role(grant.role))
        return roles

    def _record_change(
        self, ledger: Ledger, actor: str, action: str, user_id: str, what: dict[str, str]
    ) -> None:
        ledger.append(
            actor=actor,
            action=action,
            object_id=user_id,
            digest=content_hash(action, user_id, what),
        )


def require_valid_token(database: Database, connection: Connection, token_id: str) -> None:
    """Raises LoginEnded if the token was revoked or has expired: servers cache its owner for a
    moment.
    """
    holds = and_(
        tokens.c.token_hash.startswith(token_id, autoescape=True),
        tokens.c.revoked_at.is_(None),
        tokens.c.expires_at > database.clock.now(),
    )
    if connection.execute(select(tokens.c.user_id).where(holds)).first() is None:
        raise LoginEnded("The login of this request has ended; nothing was done. Log in again.")


def require_password(connection: Connection, user_id: str, password_hash: str) -> None:
    """Raises LoginEnded if the hash is no longer that of the user's password, or the user was
    disabled, since the login.
    """
    same = and_(users.c.user_id == user_id, users.c.password_hash == password_hash)
    if (
        connection.execute(
            select(users.c.user_id).where(same, users.c.disabled_at.is_(None))
        ).first()
        is None
    ):
        raise LoginEnded(
            "The password was changed or removed meanwhile; nothing was done. Log in again."
        )


# Queried twice a second for each active user.
_SELECT_USER = select(users).where(users.c.user_id == bindparam("user"))
_SELECT_ROLES = select(role_grants.c.role).where(role_grants.c.user_id == bindparam("user"))


def _build_user(row: dict[str, Any], roles: Iterable[Role]) -> User:
    names = ("user_id", "email", "name", "kind", "created_at", "disabled_at", "paused_at")
    return User(
        **{name: row[name] for name in names},
        roles=tuple(sorted(roles)),
        has_password=row["password_hash"] is not None,
    )


def _normalize_email(email: str) -> str:
    """The address as stored: NFKC, lower case, without control and format characters. Raises
    ConfigurationError.

    >>> _normalize_email(" Ａnn@Example.org")
    'ann@example.org'
    """
    cleaned = unicodedata.normalize("NFKC", email).strip().lower()
    local, _, host = cleaned.partition("@")
    if (
        not local
        or not host
        or not cleaned.isprintable()  # control and format characters
        or any(c.isspace() for c in cleaned)
        or "@" in host
        or len(cleaned) > 254
    ):
        raise ConfigurationError(
            f"Invalid e-mail address {email!r}. Write name@host; it is a login, no mail is ever "
            f"sent to it."
        )
    return cleaned
