"""Who may log in, and as what. Knows no password: it is handed their hashes. E-mail and name stand in this table and nowhere else."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select

from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.records import Role, User, content_hash
from rlhf_pipeline.store.audit import Ledger, acting
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.prepared import Prepared, scope_of, scoped
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
            return self._one(connection, user_id)

    def get(self, user_id: str) -> User:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return self._one(connection, user_id)

    def with_email(self, email: str) -> User | None:
        with self._database.reading() as connection:
            found = self._read(connection, users.c.email == _normal(email))
        return found[0] if found else None

    def password_hash(self, user_id: str) -> str | None:
        with self._database.reading() as connection:
            wanted = select(users.c.password_hash).where(self._database.mine(users), users.c.user_id == user_id)
            found: str | None = connection.execute(wanted).scalar()
            return found

    def all(self) -> list[User]:
        """By e-mail."""
        with self._database.reading() as connection:
            return self._read(connection)

    def count(self) -> int:
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(users).where(self._database.mine(users))).scalar_one()

    def set_password(self, user_id: str, password_hash: str | None, *, actor: str) -> None:
        """Ends all sessions of the user. Raises NotFound."""
        with acting(self._database) as (connection, ledger):
            self._one(connection, user_id)
            self._update(connection, user_id, {"password_hash": password_hash})
            self._revoke_all(connection, user_id, kind="session")
            self._write(ledger, actor, "users.set_password", user_id, {})

    def rename(self, user_id: str, name: str, *, actor: str) -> User:
        """Raises NotFound; ConfigurationError for a name that says nothing."""
        return self.change(user_id, name=name, actor=actor)

    def disable(self, user_id: str, *, actor: str) -> User:
        """No login, no token of theirs works from the next request on. Raises ConfigurationError for the last admin."""
        return self.change(user_id, disabled=True, actor=actor)

    def enable(self, user_id: str, *, actor: str) -> User:
        return self.change(user_id, disabled=False, actor=actor)

    def set_roles(self, user_id: str, roles: Iterable[Role], *, actor: str) -> User:
        """Exactly these from now on. Raises NotFound; ConfigurationError where nobody would be admin any more."""
        return self.change(user_id, roles=roles, actor=actor)

    def change(
        self,
        user_id: str,
        *,
        name: str | None = None,
        roles: Iterable[Role] | None = None,
        disabled: bool | None = None,
        actor: str,
        check: Callable[[User], None] | None = None,
    ) -> User:
        """All of it or nothing; what is None stays. The user as changed.

        `check` is handed the user as they stand when nobody else can change them any more, and refuses by raising. Raises NotFound;
        ConfigurationError for a name that says nothing, and where nobody would be admin any more.
        """
        with acting(self._database) as (connection, ledger):
            user = self._one(connection, user_id)
            if check is not None:
                check(user)
            if name is not None and name.strip() != user.name:
                if not name.strip():
                    raise ConfigurationError("A name must have a character that is no space. Write one.")
                self._update(connection, user_id, {"name": name.strip()})
                self._write(ledger, actor, "users.rename", user_id, {})
            if roles is not None:
                self._put_roles(connection, ledger, user, set(roles), actor)
            if disabled is not None and disabled != (user.disabled_at is not None):
                self._set_disabled(connection, ledger, user_id, disabled, actor)
            return self._one(connection, user_id)

    def _put_roles(self, connection: Connection, ledger: Ledger, user: User, wanted: set[Role], actor: str) -> None:
        if Role.ADMIN not in wanted:
            self._refuse_last_admin(connection, user.user_id)
        has = set(user.roles)
        here = and_(self._database.mine(role_grants), role_grants.c.user_id == user.user_id)
        for role in sorted(has - wanted):
            connection.execute(role_grants.delete().where(here, role_grants.c.role == role.value))
            self._write(ledger, actor, "roles.revoke", user.user_id, {"role": role.value})
        self._grant(connection, ledger, user.user_id, wanted - has, actor)

    def _set_disabled(self, connection: Connection, ledger: Ledger, user_id: str, disabled: bool, actor: str) -> None:
        if disabled:
            self._refuse_last_admin(connection, user_id)
            self._revoke_all(connection, user_id)
        self._update(connection, user_id, {"disabled_at": self._database.clock.now() if disabled else None})
        self._write(ledger, actor, "users.disable" if disabled else "users.enable", user_id, {})

    def _grant(self, connection: Connection, ledger: Ledger, user_id: str, roles: set[Role], actor: str) -> None:
        now = self._database.clock.now()
        rows = [{"user_id": user_id, "role": role.value, "granted_at": now, "granted_by": actor} for role in sorted(roles)]
        self._database.insert(connection, role_grants, rows)
        for role in sorted(roles):
            self._write(ledger, actor, "roles.grant", user_id, {"role": role.value})

    def _update(self, connection: Connection, user_id: str, values: dict[str, Any]) -> None:
        connection.execute(users.update().where(self._database.mine(users), users.c.user_id == user_id).values(values))

    def _revoke_all(self, connection: Connection, user_id: str, kind: str | None = None) -> None:
        of_user = and_(self._database.mine(tokens), tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None))
        of_kind = () if kind is None else (tokens.c.kind == kind,)
        connection.execute(tokens.update().where(of_user, *of_kind).values(revoked_at=self._database.clock.now()))

    def _one(self, connection: Connection, user_id: str) -> User:
        of_user = scope_of(self._database, user=user_id)
        row = _ONE.first(connection, of_user)
        if row is None:
            raise NotFound(f"There is no user {user_id!r} in project {self._database.project!r}. `rlhf users list` names them.")
        return _user(row._asdict(), [Role(grant.role) for grant in _ROLES.rows(connection, of_user)])

    def _refuse_last_admin(self, connection: Connection, user_id: str) -> None:
        admins = (
            select(role_grants.c.user_id)
            .join(users, and_(self._database.mine(users), users.c.user_id == role_grants.c.user_id))
            .where(self._database.mine(role_grants), role_grants.c.role == Role.ADMIN.value, users.c.disabled_at.is_(None))
        )
        if list(connection.execute(admins).scalars()) == [user_id]:
            raise ConfigurationError("This is the last admin: nobody could add users any more. Make somebody else admin first.")

    def _read(self, connection: Connection, *conditions: Any) -> list[User]:
        wanted = select(users).where(self._database.mine(users), *conditions).order_by(users.c.email)
        rows = connection.execute(wanted).mappings().all()
        granted = select(role_grants.c.user_id, role_grants.c.role).where(self._database.mine(role_grants))
        if len(rows) == 1:
            granted = granted.where(role_grants.c.user_id == rows[0]["user_id"])
        roles: dict[str, list[Role]] = {}
        for grant in connection.execute(granted):
            roles.setdefault(grant.user_id, []).append(Role(grant.role))
        return [_user(dict(row), roles.get(row["user_id"], [])) for row in rows]

    def _write(self, ledger: Ledger, actor: str, action: str, user_id: str, what: dict[str, str]) -> None:
        ledger.append(actor=actor, action=action, object_id=user_id, digest=content_hash(action, user_id, what))


# Asked twice a second for everybody who works.
_ONE = Prepared(select(users).where(scoped(users), users.c.user_id == bindparam("user")))
_ROLES = Prepared(select(role_grants.c.role).where(scoped(role_grants), role_grants.c.user_id == bindparam("user")))


def _user(row: Mapping[str, Any], roles: Sequence[Role]) -> User:
    return User(
        **{name: row[name] for name in ("user_id", "email", "name", "kind", "created_at", "disabled_at")},
        roles=tuple(sorted(roles)),
        has_password=row["password_hash"] is not None,
    )


def _normal(email: str) -> str:
    cleaned = email.strip().lower()
    local, _, host = cleaned.partition("@")
    if not local or not host or any(c.isspace() for c in cleaned) or "@" in host or len(cleaned) > 254:
        raise ConfigurationError(f"{email!r} is no e-mail address. Write name@host; it is a login, nothing is ever sent to it.")
    return cleaned
