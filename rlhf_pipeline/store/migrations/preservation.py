"""What an older version of the tables cannot hold, put aside on the way down and given back on the
way up. Knows names, no version.

Tables `kept_<revision>_<table>` lie beside the others: no program reads them, and the way up
empties and drops them. So down and up again is the same rows. An older program does not see what is
in them: its `audit verify` takes votes whose later columns are put aside for changed ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store.migrations.versions import v0002_append_only

SCOPE = ("organization_id", "project_id")
PREFIX = "kept_"


def preserve_rows(revision: str, table: str) -> None:
    """All rows of a table that is about to be dropped."""
    _preserve(f"SELECT * FROM {table}", revision, table)


def preserve_columns(revision: str, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
    """What stands in columns that are about to be dropped, by `key`; of rows where one of them says
    something.
    """
    said = " OR ".join(f"{name} IS NOT NULL" for name in columns)
    _preserve(
        f"SELECT {', '.join((*SCOPE, *key, *columns))} FROM {table} WHERE {said}", revision, table
    )


def restore_rows(revision: str, table: str) -> None:
    """Into the table that was made anew."""
    kept = _preserved_name(revision, table)
    if _exists(kept):
        names = ", ".join(column["name"] for column in sa.inspect(op.get_bind()).get_columns(kept))
        op.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {kept}")
        op.drop_table(kept)


def restore_columns(
    revision: str,
    table: str,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    append_only: bool = False,
) -> None:
    """Into the columns that were made anew; of an `append_only` table without the triggers that
    refuse it.
    """
    kept = _preserved_name(revision, table)
    if _exists(kept):
        values = ", ".join(f"{name} = {kept}.{name}" for name in columns)
        same = " AND ".join(f"{table}.{name} = {kept}.{name}" for name in (*SCOPE, *key))
        with _allow_changes(table) if append_only else nullcontext():
            op.execute(f"UPDATE {table} SET {values} FROM {kept} WHERE {same}")
        op.drop_table(kept)


def refuse_to_drop() -> None:
    """Raises StoreError where something is put aside: below the first version there is nowhere to
    give it back from.
    """
    kept = sorted(
        name for name in sa.inspect(op.get_bind()).get_table_names() if name.startswith(PREFIX)
    )
    counted = [
        f"{op.get_bind().execute(sa.text(f'SELECT count(*) FROM {name}')).scalar_one():,} rows of "
        f"{_original_name(name)}"
        for name in kept
    ]
    if counted:
        raise StoreError(
            "The way down to base drops every table, and with them what no older version holds: "
            f"{', '.join(counted)}. Nothing was changed. Export first with `rlhf export votes`, "
            "`comparisons` and `tuples`, or go down to 0001, which puts all of it aside."
        )


@contextmanager
def _allow_changes(table: str) -> Iterator[None]:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        v0002_append_only.drop_triggers(table)
    else:
        op.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_refuse_change")
    yield
    if is_sqlite:
        v0002_append_only.create_triggers(table)
    else:
        op.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_refuse_change")


def _preserve(rows: str, revision: str, table: str) -> None:
    if op.get_bind().execute(sa.text(f"SELECT count(*) FROM ({rows}) AS found")).scalar_one():
        op.execute(f"CREATE TABLE {_preserved_name(revision, table)} AS {rows}")


def _preserved_name(revision: str, table: str) -> str:
    return f"{PREFIX}{revision}_{table}"


def _original_name(name: str) -> str:
    return name.removeprefix(PREFIX).partition("_")[2]


def _exists(kept: str) -> bool:
    return bool(sa.inspect(op.get_bind()).has_table(kept))
