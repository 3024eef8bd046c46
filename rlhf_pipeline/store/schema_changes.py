"""The changes of the tables since 0.1.0, in order: an older store gets those that it lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # 0.1 s, and only an upgrade needs it
    from alembic.operations import Operations


@dataclass(frozen=True)
class SchemaChange:
    """One step from the tables before it to its own, on SQLite and Postgres.

    title: in the imperative, for the log.
    apply: changes the tables by Alembic's operations and moves rows by `operations.execute`. It
        names columns with SQLAlchemy's own types and not by schema.py, which further changes alter.
    fingerprint: of schema.py with this change.
    """

    title: str
    apply: "Callable[[Operations], None]"
    fingerprint: str


BASE = "6119e5780122"  # fingerprint of schema.py in 0.1.0
CHANGES: tuple[SchemaChange, ...] = ()


def list_versions(changes: Sequence[SchemaChange] = CHANGES) -> list[str]:
    """The version of the tables in 0.1.0 and after each change: its number and the fingerprint.

    >>> list_versions(())
    ['0-6119e5780122']
    """
    fingerprints = [BASE, *(change.fingerprint for change in changes)]
    return [f"{number}-{fingerprint}" for number, fingerprint in enumerate(fingerprints)]
