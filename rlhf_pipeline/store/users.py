"""Who may log in, and as what. Knows no password: it is handed their hashes. E-mail and name stand in this table and nowhere else."""

import secrets
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, and_, func, select

from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.records import Role, User, content_hash
from rlhf_pipeline.store.audit import Ledger, acting
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import role_grants, tokens, users


class Users:
    """Every change is an act in the audit chain, in the change's own transaction. Users are disabled, never removed."""

    def __init__(self, database: Database):
        self._database = database

    def add(
        self, *, email: str, name: str, roles: Iterable[Role] = (), kind: str = "person", password_hash: str | None = None, actor: str
    ) -> User:
        """Raises ConfigurationError for an e-mail address that is none or is taken."""
        email = _normal(email)
        user_id = f"u{secrets.token_hex(8)}"
        now = self._database.clock.now()
        row = {
            "user_id": user_id,
            "email": email,
            "name": name.strip() or email,
            "kind": kind,
            "password_hash": password_hash,
            "created_at": now,
            "disabled_at": None,
        }
        with acting(self._database) as (connection, ledger):
            if connection.execute(select(users.c.user_id).where(self._database.mine(users), users.c.email == email)).scalar():
                raise ConfigurationError(f"There is a user with e-mail {email!r} already. Give them a role, or use another address.")
            self._database.insert(connection, users, [row])
            self._write(ledger, actor, "users.add", user_id, {"kind": kind})
            self._grant(connection, ledger, user_id, set(roles), actor)
        return self.get(user_id)

    def get(self, user_id: str) -> User:
        """Raises NotFound."""
        found = self._read(users.c.user_id == user_id)
        if not found:
            raise NotFound(f"There is no user {user_id!r} in project {self._database.project!r}. `rlhf users list` names them.")
        return found[0]

    def with_email(self, email: str) -> User | None:
        found = self._read(users.c.email == _normal(email))
        return found[0] if found else None

    def password_hash(self, user_id: str) -> str | None:
        with self._database.reading() as connection:
            wanted = select(users.c.password_hash).where(self._database.mine(users), users.c.user_id == user_id)
            found: str | None = connection.execute(wanted).scalar()
            return found

    def all(self) -> list[User]:
        """By e-mail."""
        return self._read()

    def count(self) -> int:
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(users).where(self._database.mine(users))).scalar_one()

    def set_password(self, user_id: str, password_hash: str | None, *, actor: str) -> None:
        """Ends all sessions of the user. Raises NotFound."""
        self._change(user_id, "users.set_password", actor, {"password_hash": password_hash}, ends_sessions=True)

    def rename(self, user_id: str, name: str, *, actor: str) -> User:
        """Raises NotFound; ConfigurationError for a name that says nothing."""
        if not name.strip():
            raise ConfigurationError("A name must have a character that is no space. Write one.")
        self._change(user_id, "users.rename", actor, {"name": name.strip()})
        return self.get(user_id)

    def disable(self, user_id: str, *, actor: str) -> User:
        """No login, no token of theirs works from the next request on. Raises ConfigurationError for the last admin."""
        with acting(self._database) as (connection, ledger):
            self._refuse_last_admin(connection, user_id)
            self._update(connection, user_id, {"disabled_at": self._database.clock.now()})
            self._revoke_all(connection, user_id)
            self._write(ledger, actor, "users.disable", user_id, {})
        return self.get(user_id)

    def enable(self, user_id: str, *, actor: str) -> User:
        self._change(user_id, "users.enable", actor, {"disabled_at": None})
        return self.get(user_id)

    def set_roles(self, user_id: str, roles: Iterable[Role], *, actor: str) -> User:
        """Exactly these from now on. Raises NotFound; ConfigurationError where nobody would be admin any more."""
        wanted = set(roles)
        with acting(self._database) as (connection, ledger):
            self._require(connection, user_id)
            if Role.ADMIN not in wanted:
                self._refuse_last_admin(connection, user_id)
            here = and_(self._database.mine(role_grants), role_grants.c.user_id == user_id)
            has = {Role(role) for role in connection.execute(select(role_grants.c.role).where(here)).scalars()}
            for role in sorted(has - wanted):
                connection.execute(role_grants.delete().where(here, role_grants.c.role == role.value))
                self._write(ledger, actor, "roles.revoke", user_id, {"role": role.value})
            self._grant(connection, ledger, user_id, wanted - has, actor)
        return self.get(user_id)

    def _grant(self, connection: Connection, ledger: Ledger, user_id: str, roles: set[Role], actor: str) -> None:
        now = self._database.clock.now()
        rows = [{"user_id": user_id, "role": role.value, "granted_at": now, "granted_by": actor} for role in sorted(roles)]
        self._database.insert(connection, role_grants, rows)
        for role in sorted(roles):
            self._write(ledger, actor, "roles.grant", user_id, {"role": role.value})

    def _change(self, user_id: str, action: str, actor: str, values: dict[str, Any], *, ends_sessions: bool = False) -> None:
        with acting(self._database) as (connection, ledger):
            self._update(connection, user_id, values)
            if ends_sessions:
                self._revoke_all(connection, user_id, kind="session")
            self._write(ledger, actor, action, user_id, {})

    def _update(self, connection: Connection, user_id: str, values: dict[str, Any]) -> None:
        self._require(connection, user_id)
        connection.execute(users.update().where(self._database.mine(users), users.c.user_id == user_id).values(values))

    def _revoke_all(self, connection: Connection, user_id: str, kind: str | None = None) -> None:
        of_user = and_(self._database.mine(tokens), tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None))
        of_kind = () if kind is None else (tokens.c.kind == kind,)
        connection.execute(tokens.update().where(of_user, *of_kind).values(revoked_at=self._database.clock.now()))

    def _require(self, connection: Connection, user_id: str) -> None:
        if not connection.execute(select(users.c.user_id).where(self._database.mine(users), users.c.user_id == user_id)).scalar():
            raise NotFound(f"There is no user {user_id!r} in project {self._database.project!r}. `rlhf users list` names them.")

    def _refuse_last_admin(self, connection: Connection, user_id: str) -> None:
        admins = (
            select(role_grants.c.user_id)
            .join(users, and_(self._database.mine(users), users.c.user_id == role_grants.c.user_id))
            .where(self._database.mine(role_grants), role_grants.c.role == Role.ADMIN.value, users.c.disabled_at.is_(None))
        )
        if list(connection.execute(admins).scalars()) == [user_id]:
            raise ConfigurationError("This is the last admin: nobody could add users any more. Make somebody else admin first.")

    def _read(self, *conditions: Any) -> list[User]:
        with self._database.reading() as connection:
            wanted = select(users).where(self._database.mine(users), *conditions).order_by(users.c.email)
            rows = connection.execute(wanted).mappings().all()
            ids = [row["user_id"] for row in rows]
            granted = select(role_grants.c.user_id, role_grants.c.role).where(self._database.mine(role_grants))
            if len(ids) == 1:
                granted = granted.where(role_grants.c.user_id == ids[0])
            roles: dict[str, list[Role]] = {}
            for grant in connection.execute(granted):
                roles.setdefault(grant.user_id, []).append(Role(grant.role))
        return [
            User(
                **{name: row[name] for name in ("user_id", "email", "name", "kind", "created_at", "disabled_at")},
                roles=tuple(sorted(roles.get(row["user_id"], []))),
                has_password=row["password_hash"] is not None,
            )
            for row in rows
        ]

    def _write(self, ledger: Ledger, actor: str, action: str, user_id: str, what: dict[str, str]) -> None:
        ledger.append(actor=actor, action=action, object_id=user_id, digest=content_hash(action, user_id, what))


def _normal(email: str) -> str:
    cleaned = email.strip().lower()
    local, _, host = cleaned.partition("@")
    if not local or not host or any(c.isspace() for c in cleaned) or "@" in host or len(cleaned) > 254:
        raise ConfigurationError(f"{email!r} is no e-mail address. Write name@host; it is a login, nothing is ever sent to it.")
    return cleaned
