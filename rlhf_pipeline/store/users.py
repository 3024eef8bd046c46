"""Users and their roles. E-mail and name are stored in this table alone; passwords come hashed.

An account belongs to one project, or to the organisation; then its rows have EVERYWHERE as their
project: it is known in every project of the organisation, with its roles there and those it has in
all of them.
"""

import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, or_, select

from rlhf_pipeline.errors import ConfigurationError, LoginEnded, NotFound
from rlhf_pipeline.records import Role, User, content_hash
from rlhf_pipeline.store.audit import Ledger, audited_transaction
from rlhf_pipeline.store.card_queue import is_unfinished
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.prepared_statements import (
    EVERYWHERE,
    PreparedStatement,
    in_scope_or_everywhere,
    scope_of,
)
from rlhf_pipeline.store.schema import role_grants, slots, tokens, users

# roles that vote, as `web.permissions` has them
VOTERS = frozenset({Role.ANNOTATOR, Role.CURATOR, Role.ADMIN})
Grants = dict[str, tuple[Role, ...]]  # by project: this one, or EVERYWHERE


class Users:
    """Every change is an act in the audit chain, in the change's own transaction. Users are
    disabled, never removed.
    """

    def __init__(self, database: Database):
        self._database = database

    def add(
        self,
        *,
        email: str,
        name: str,
        roles: Iterable[Role] = (),
        organization_roles: Iterable[Role] = (),
        kind: str = "person",
        password_hash: str | None = None,
        actor: str,
    ) -> User:
        """Add a user; with `organization_roles` as an account of the organisation. Raises
        ConfigurationError for an e-mail address that is invalid or taken.
        """
        email = _normalize_email(email)
        user_id = f"u{secrets.token_hex(8)}"
        everywhere = set(organization_roles)
        row = {
            "project_id": EVERYWHERE if everywhere else self._database.project,
            "user_id": user_id,
            "email": email,
            "name": name.strip() or email,
            "kind": kind,
            "password_hash": password_hash,
            "created_at": self._database.clock.now(),
            "disabled_at": None,
        }
        with audited_transaction(self._database) as (connection, ledger):
            lock_organization(self._database, connection)
            if self._read_users(connection, users.c.email == email):
                raise ConfigurationError(
                    f"There is a user with e-mail {email!r} already. Give them a role, or use "
                    "another address."
                )
            if everywhere:
                self._refuse_known_elsewhere(connection, email, user_id)
            self._database.insert(connection, users, [row])
            self._record_change(ledger, actor, "users.add", user_id, {"kind": kind})
            self._replace_roles(connection, ledger, user_id, EVERYWHERE, everywhere, actor)
            self._replace_roles(
                connection, ledger, user_id, self._database.project, set(roles), actor
            )
            return self._read_user(connection, user_id)

    def get(self, user_id: str) -> User:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            return self._read_user(connection, user_id)

    def with_email(self, email: str) -> User | None:
        """By the normalised address. Raises ConfigurationError for an invalid one."""
        normal = _normalize_email(email)
        with self._database.read_transaction() as connection:
            found = self._read_users(connection, users.c.email == normal)
        return found[0] if found else None

    def password_hash(self, user_id: str) -> str | None:
        with self._database.read_transaction() as connection:
            wanted = select(users.c.password_hash).where(
                self._is_account(), users.c.user_id == user_id
            )
            found: str | None = connection.execute(wanted).scalar()
            return found

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
        accounts = select(func.count()).select_from(users).where(self._is_account())
        return self._database.fetch_scalar(accounts) or 0

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
            self._lock_user(connection, user_id)
            if asked_by is not None:
                require_valid_token(self._database, connection, asked_by)
            if instead_of is not None:
                require_password(self._database, connection, user_id, instead_of)
            this = and_(self._is_account(), users.c.user_id == user_id)
            connection.execute(users.update().where(this).values(password_hash=password_hash))
            self._revoke_all(connection, user_id, kind="session")
            self._record_change(ledger, actor, "users.set_password", user_id, {})

    def rename(self, user_id: str, name: str, *, actor: str) -> User:
        """Raises NotFound; ConfigurationError for an empty name."""
        return self.change(user_id, name=name, actor=actor)

    def disable(self, user_id: str, *, actor: str) -> User:
        """End all logins and tokens of the user from the next request on. Raises ConfigurationError
        for the last admin.
        """
        return self.change(user_id, disabled=True, actor=actor)

    def enable(self, user_id: str, *, actor: str) -> User:
        return self.change(user_id, disabled=False, actor=actor)

    def set_roles(self, user_id: str, roles: Iterable[Role], *, actor: str) -> User:
        """Replace the roles in this project. Raises NotFound; ConfigurationError if no admin would
        be left.
        """
        return self.change(user_id, roles=roles, actor=actor)

    def set_organization_roles(self, user_id: str, roles: Iterable[Role], *, actor: str) -> User:
        """Replace the roles in every project; roles in this project stay. Raises as `change`."""
        return self.change(user_id, organization_roles=roles, actor=actor)

    def change(
        self,
        user_id: str,
        *,
        name: str | None = None,
        roles: Iterable[Role] | None = None,
        organization_roles: Iterable[Role] | None = None,
        disabled: bool | None = None,
        actor: str,
        check: Callable[[User], None] | None = None,
    ) -> User:
        """Change all of it or nothing; None leaves a value as it is. Returns the changed user.

        The first organisation role turns an account of the project into one of the organisation:
        its password, sessions and tokens end, because admins of this project could have had them
        made. `check` gets the user under the lock and refuses by raising. Raises NotFound;
        ConfigurationError for an empty name, if no admin would be left, and for an organisation
        role of an address that has an account of its own in another project.
        """
        with audited_transaction(self._database) as (connection, ledger):
            user = self._lock_user(connection, user_id, is_raised=organization_roles is not None)
            if check is not None:
                check(user)
            had_admin = self._has_admin(connection)
            if name is not None and name.strip() != user.name:
                if not name.strip():
                    raise ConfigurationError(
                        "The name is blank. Write at least one other character."
                    )
                self._update(connection, user_id, {"name": name.strip()})
                self._record_change(ledger, actor, "users.rename", user_id, {})
            if organization_roles is not None:
                wanted = set(organization_roles)
                if wanted and not user.in_every_project:
                    self._move_to_organization(connection, ledger, user, actor)
                self._replace_roles(connection, ledger, user_id, EVERYWHERE, wanted, actor)
            if roles is not None:
                self._replace_roles(
                    connection, ledger, user_id, self._database.project, set(roles), actor
                )
            if disabled is not None and disabled != (user.disabled_at is not None):
                self._set_disabled(connection, ledger, user_id, disabled, actor)
            if had_admin and not self._has_admin(connection):
                raise ConfigurationError(
                    "This is the last admin; without one nobody can add users. Make another user "
                    "admin first."
                )
            self._release_reserved_slots(connection, ledger, user_id, actor)
            return self._read_user(connection, user_id)

    def _release_reserved_slots(
        self, connection: Connection, ledger: Ledger, user_id: str, actor: str
    ) -> None:
        """Release the slots reserved for a user who may no longer vote, which would never be
        dealt.
        """
        of_user = and_(
            slots.c.organization_id == self._database.organization,
            slots.c.annotator_id == user_id,
            is_unfinished(),
        )
        asked_in = (
            connection.execute(select(slots.c.project_id).where(of_user).distinct()).scalars().all()
        )
        if not asked_in:
            return
        is_able = self._read_user(connection, user_id).disabled_at is None
        voting = and_(
            role_grants.c.organization_id == self._database.organization,
            role_grants.c.user_id == user_id,
            role_grants.c.role.in_([role.value for role in VOTERS]),
        )
        votes_in = (
            set(connection.execute(select(role_grants.c.project_id).where(voting)).scalars())
            if is_able
            else set()
        )
        left = [project for project in asked_in if not votes_in & {project, EVERYWHERE}]
        n = (
            connection.execute(
                slots.update()
                .where(of_user, slots.c.project_id.in_(left))
                .values(annotator_id=None)
            ).rowcount
            if left
            else 0
        )
        if n:
            ledger.append(
                actor=actor,
                action="comparisons.unname",
                object_id=f"{n} slots of {user_id}",
                digest=content_hash(user_id, left, n),
            )

    def _move_to_organization(
        self, connection: Connection, ledger: Ledger, user: User, actor: str
    ) -> None:
        self._refuse_known_elsewhere(connection, user.email, user.user_id)
        self._revoke_all(connection, user.user_id)
        self._update(connection, user.user_id, {"password_hash": None})
        self._copy_account(connection, user, EVERYWHERE)
        self._record_change(ledger, actor, "users.into_organization", user.user_id, {})

    def _copy_account(self, connection: Connection, user: User, project: str) -> None:
        """Insert a row without a password. That of EVERYWHERE is the account from then on; in a
        project it is what roles there refer to.
        """
        kept = {
            name: getattr(user, name)
            for name in ("user_id", "email", "name", "kind", "created_at", "disabled_at")
        }
        self._database.insert(
            connection, users, [{"project_id": project, **kept, "password_hash": None}]
        )

    def _replace_roles(
        self,
        connection: Connection,
        ledger: Ledger,
        user_id: str,
        project: str,
        wanted: set[Role],
        actor: str,
    ) -> None:
        """Set exactly these roles in a project, or everywhere."""
        has = set(self._read_grants(connection, [user_id]).get(user_id, {}).get(project, ()))
        where = ".organization" if project == EVERYWHERE else ""
        these = and_(
            role_grants.c.organization_id == self._database.organization,
            role_grants.c.project_id == project,
            role_grants.c.user_id == user_id,
        )
        for role in sorted(has - wanted):
            connection.execute(role_grants.delete().where(these, role_grants.c.role == role.value))
            self._record_change(
                ledger, actor, f"roles.revoke{where}", user_id, {"role": role.value}
            )
        new = sorted(wanted - has)
        if new:
            self._ensure_account_row(connection, user_id, project)
        now = self._database.clock.now()
        rows = [
            {
                "project_id": project,
                "user_id": user_id,
                "role": role.value,
                "granted_at": now,
                "granted_by": actor,
            }
            for role in new
        ]
        self._database.insert(connection, role_grants, rows)
        for role in new:
            self._record_change(ledger, actor, f"roles.grant{where}", user_id, {"role": role.value})

    def _ensure_account_row(self, connection: Connection, user_id: str, project: str) -> None:
        """Make sure that a project has a row of an account of the organisation, to which its roles
        refer.
        """
        here = and_(
            users.c.organization_id == self._database.organization,
            users.c.project_id == project,
            users.c.user_id == user_id,
        )
        if connection.execute(select(users.c.user_id).where(here)).first() is None:
            self._copy_account(connection, self._read_user(connection, user_id), project)

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
        """Update the user's row, and the rows that stand for an account of the organisation in
        other projects.
        """
        of_user = and_(
            users.c.organization_id == self._database.organization, users.c.user_id == user_id
        )
        connection.execute(users.update().where(of_user).values(values))

    def _revoke_all(self, connection: Connection, user_id: str, kind: str | None = None) -> None:
        of_user = and_(
            in_project_or_organization(self._database, tokens),
            tokens.c.user_id == user_id,
            tokens.c.revoked_at.is_(None),
        )
        of_kind = () if kind is None else (tokens.c.kind == kind,)
        connection.execute(
            tokens.update().where(of_user, *of_kind).values(revoked_at=self._database.clock.now())
        )

    def _read_user(self, connection: Connection, user_id: str) -> User:
        of_user = scope_of(self._database, user=user_id)
        found = _SELECT_USER.rows(connection, of_user)
        if not found:
            raise NotFound(
                f"There is no user {user_id!r} in project {self._database.project!r}. `rlhf users "
                "list` names them."
            )
        # Of an account of the organisation there are two where it has roles in this project
        # besides.
        row = next((row for row in found if row.project_id == EVERYWHERE), found[0])
        grants = [
            (grant.project_id, Role(grant.role))
            for grant in _SELECT_ROLES.rows(connection, of_user)
        ]
        return self._build_user(
            row._asdict(),
            {
                p: tuple(role for project, role in grants if project == p)
                for p in {p for p, _ in grants}
            },
        )

    def _has_admin(self, connection: Connection) -> bool:
        is_admin = and_(
            in_project_or_organization(self._database, role_grants),
            role_grants.c.role == Role.ADMIN.value,
        )
        able = select(users.c.user_id).where(self._is_account(), users.c.disabled_at.is_(None))
        return (
            connection.execute(
                select(role_grants.c.user_id)
                .where(is_admin, role_grants.c.user_id.in_(able))
                .limit(1)
            ).first()
            is not None
        )

    def _is_account(self) -> ColumnElement[bool]:
        """One row per user: not one that stands for an account of the organisation."""
        same = users.alias("same")
        stands_for_it = select(same.c.user_id).where(
            same.c.organization_id == self._database.organization,
            same.c.project_id == EVERYWHERE,
            same.c.user_id == users.c.user_id,
        )
        is_account = or_(users.c.project_id == EVERYWHERE, ~stands_for_it.exists())
        return and_(in_project_or_organization(self._database, users), is_account)

    def _read_users(
        self, connection: Connection, *conditions: Any, limit: int | None = None
    ) -> list[User]:
        wanted = (
            select(users)
            .where(self._is_account(), *conditions)
            .order_by(users.c.email, users.c.user_id)
            .limit(limit)
        )
        rows = connection.execute(wanted).mappings().all()
        grants = self._read_grants(connection, [row["user_id"] for row in rows])
        return [self._build_user(dict(row), grants.get(row["user_id"], {})) for row in rows]

    def _read_grants(self, connection: Connection, user_ids: Sequence[str]) -> dict[str, Grants]:
        found: dict[str, Grants] = {}
        for ids in batches(user_ids, MAX_ROWS):
            wanted = select(
                role_grants.c.user_id, role_grants.c.project_id, role_grants.c.role
            ).where(
                in_project_or_organization(self._database, role_grants),
                role_grants.c.user_id.in_(ids),
            )
            for grant in connection.execute(wanted):
                of_user = found.setdefault(grant.user_id, {})
                of_user[grant.project_id] = (*of_user.get(grant.project_id, ()), Role(grant.role))
        return found

    def _build_user(self, row: Mapping[str, Any], grants: Grants) -> User:
        return User(
            **{
                name: row[name]
                for name in ("user_id", "email", "name", "kind", "created_at", "disabled_at")
            },
            roles=tuple(sorted(grants.get(self._database.project, ()))),
            organization_roles=tuple(sorted(grants.get(EVERYWHERE, ()))),
            in_every_project=row["project_id"] == EVERYWHERE,
            has_password=row["password_hash"] is not None,
        )

    def _refuse_known_elsewhere(self, connection: Connection, email: str, user_id: str) -> None:
        others = select(users.c.project_id).where(
            users.c.organization_id == self._database.organization,
            users.c.email == email,
            users.c.user_id != user_id,
        )
        projects = sorted(connection.execute(others).scalars())
        if projects:
            raise ConfigurationError(
                f"{email} has an account of its own in {', '.join(projects)}, which would stand "
                "beside that of the organisation. Give the organisation's roles to an address that "
                "no other project of this store knows."
            )

    def _lock_user(self, connection: Connection, user_id: str, *, is_raised: bool = False) -> User:
        """The user, whom nobody else can change before this commits: neither here nor, for an
        account of the organisation, from another project. Raises NotFound.
        """
        user = self._read_user(connection, user_id)
        if not (is_raised or user.in_every_project):
            return user
        lock_organization(self._database, connection)
        return self._read_user(connection, user_id)  # read again under the lock

    def _record_change(
        self, ledger: Ledger, actor: str, action: str, user_id: str, what: dict[str, str]
    ) -> None:
        ledger.append(
            actor=actor,
            action=action,
            object_id=user_id,
            digest=content_hash(action, user_id, what),
        )


def in_project_or_organization(database: Database, table: Any) -> ColumnElement[bool]:
    """A row belongs to this project, or to all of its organisation."""
    return and_(
        table.c.organization_id == database.organization,
        or_(table.c.project_id == database.project, table.c.project_id == EVERYWHERE),
    )


def lock_organization(database: Database, connection: Connection) -> None:
    """Take the organisation's lock, held to commit. SQLite has one writer anyway; Postgres has one
    per project.
    """
    if not database.is_sqlite:
        key = int(content_hash(database.organization, EVERYWHERE)[:15], 16)
        connection.execute(select(func.pg_advisory_xact_lock(key)))


def require_valid_token(database: Database, connection: Connection, token_id: str) -> None:
    """Raises LoginEnded if the token was revoked or has expired: servers cache its owner for a
    moment.
    """
    this = and_(
        in_project_or_organization(database, tokens),
        tokens.c.token_hash.startswith(token_id, autoescape=True),
    )
    holds = and_(this, tokens.c.revoked_at.is_(None), tokens.c.expires_at > database.clock.now())
    if connection.execute(select(tokens.c.user_id).where(holds)).first() is None:
        raise LoginEnded("The login of this request has ended; nothing was done. Log in again.")


def require_password(
    database: Database, connection: Connection, user_id: str, password_hash: str
) -> None:
    """Raises LoginEnded if the hash is no longer that of the user's password, or the user was
    disabled, since the login.
    """
    same = and_(
        in_project_or_organization(database, users),
        users.c.user_id == user_id,
        users.c.password_hash == password_hash,
    )
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
_SELECT_USER = PreparedStatement(
    select(users).where(in_scope_or_everywhere(users), users.c.user_id == bindparam("user"))
)
_SELECT_ROLES = PreparedStatement(
    select(role_grants.c.project_id, role_grants.c.role).where(
        in_scope_or_everywhere(role_grants), role_grants.c.user_id == bindparam("user")
    )
)


def _normalize_email(email: str) -> str:
    """The address as stored: NFKC, lower case, without invisible characters. Raises
    ConfigurationError.

    >>> _normalize_email(" Ａnn@Example.org")
    'ann@example.org'
    """
    cleaned = unicodedata.normalize("NFKC", email).strip().lower()
    invisible = next((c for c in cleaned if _is_invisible(c)), None)
    if invisible is not None:
        name = unicodedata.name(invisible, "control character")
        raise ConfigurationError(
            f"The e-mail address {cleaned!a} holds the invisible character U+{ord(invisible):04X} "
            f"({name}). Type it without."
        )
    local, _, host = cleaned.partition("@")
    if (
        not local
        or not host
        or any(c.isspace() for c in cleaned)
        or "@" in host
        or len(cleaned) > 254
    ):
        raise ConfigurationError(
            f"Invalid e-mail address {email!r}. Write name@host; it is a login, no mail is ever "
            f"sent to it."
        )
    return cleaned


def _is_invisible(character: str) -> bool:
    """Controls, formats (zero width, bidi, soft hyphen) and the other default-ignorable characters
    that fonts draw as nothing.
    """
    n = ord(character)
    is_ignorable = (
        character in "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
        or 0xFE00 <= n <= 0xFE0F
        or 0xE0000 <= n <= 0xE0FFF
    )
    return is_ignorable or (
        unicodedata.category(character) in ("Cc", "Cf") and not character.isspace()
    )
