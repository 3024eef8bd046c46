"""Many rows into a table at once. Knows what SQLite and Postgres take fastest; knows no table.

Each does what SQLAlchemy would do for every single value once per column: whoever writes much holds the lock for half as long.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlalchemy.exc import DBAPIError, StatementError

FEW = 20  # rows, up to which SQLAlchemy's own way is as fast


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """`rows` all have the columns of the first one. Errors are SQLAlchemy's, whichever way is taken."""
    if len(rows) <= FEW:
        connection.execute(table.insert(), list(rows))
        return
    columns = [table.c[name] for name in rows[0]]
    values = [_stored(column, [row[column.name] for row in rows], connection.dialect) for column in columns]
    ways: dict[str, Callable[..., None]] = {"sqlite": _insert_many, "postgresql": _copy}
    ways[connection.dialect.name](connection, table.name, [column.name for column in columns], zip(*values, strict=True))


def _stored(column: Column[Any], values: list[Any], dialect: Dialect) -> list[Any]:
    """Values of a column as the driver takes them."""
    convert = column.type.dialect_impl(dialect).bind_processor(dialect)
    if convert is None:
        return values
    known: dict[Any, Any] = {}  # most moments of a transaction are the same one
    return [known[value] if value in known else known.setdefault(value, convert(value)) for value in values]


def _insert_many(connection: Connection, table: str, names: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    places = ", ".join("?" * len(names))
    connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", list(rows))


def _copy(connection: Connection, table: str, names: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    statement = f"COPY {table} ({', '.join(names)}) FROM STDIN"
    text = io.StringIO("".join(["\t".join([_cell(value) for value in row]) + "\n" for row in rows]))
    driver: Any = connection.connection.cursor()
    errors: Any = connection.dialect.dbapi
    try:
        driver.copy_expert(statement, text)
    except errors.Error as cause:
        if connection.dialect.is_disconnect(cause, connection.connection.driver_connection, driver):
            connection.invalidate(cause)
        raise DBAPIError.instance(statement, None, cause, errors.Error, dialect=connection.dialect) from cause
    except UnicodeError as cause:  # half a character
        raise StatementError(str(cause), statement, None, cause) from cause
    finally:
        driver.close()


def _cell(value: Any) -> str:
    """A value in COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return str(value)
