"""Statements that are compiled once and run with many parameters.

SQLAlchemy takes as long to build a statement as SQLite to answer it, and four times as long to run
a built one, all under the write lock. So SQLite's driver runs the compiled text here.
"""

import json
import sqlite3
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Select,
    String,
    bindparam,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError, StatementError

Converter = Callable[[Any], Any] | None


def is_among(column: ColumnElement[Any], is_sqlite: bool = False) -> ColumnElement[bool]:
    """A column is one of the parameter `values`. For a `PreparedStatement` on SQLite this is one
    parameter, however many values there are.
    """
    if is_sqlite:
        return column.in_(
            select(
                func.json_each(bindparam("values", type_=String())).table_valued("value").c.value
            )
        )
    values: BindParameter[Any] = bindparam("values", expanding=True)
    return column.in_(values)


class PreparedStatement:
    """A statement, or a function that builds one for SQLite (True) and for Postgres (False),
    compiled once.

    A parameter that is a list is JSON on SQLite. Rows can be read by name and by index on both, and
    have `_asdict()`. Errors are SQLAlchemy's.
    """

    def __init__(self, statement: Executable | Callable[[bool], Executable]):
        self._made = statement
        self._of_postgres: Executable | None = None
        self._of_sqlite: _SqliteStatement | None = None

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        if connection.dialect.name == "sqlite":
            return self._compile_for_sqlite(connection.dialect).rows(connection, parameters)
        return connection.execute(self._statement(), dict(parameters)).all()

    def first(self, connection: Connection, parameters: Mapping[str, Any]) -> Any | None:
        """The first row; None if there is none."""
        return next(iter(self.rows(connection, parameters)), None)

    def scalar(self, connection: Connection, parameters: Mapping[str, Any]) -> Any:
        """The first column of the first row; None if there is none."""
        row = self.first(connection, parameters)
        return None if row is None else row[0]

    def write(self, connection: Connection, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run the statement once for each set of parameters."""
        if not parameters:
            return
        if connection.dialect.name == "sqlite":
            self._compile_for_sqlite(connection.dialect).write(connection, parameters)
        else:
            connection.execute(self._statement(), [dict(each) for each in parameters])

    def _statement(self) -> Executable:
        if self._of_postgres is None:
            self._of_postgres = self._build(False)
        return self._of_postgres

    def _build(self, is_sqlite: bool) -> Executable:
        return self._made if isinstance(self._made, Executable) else self._made(is_sqlite)

    def _compile_for_sqlite(self, dialect: Dialect) -> "_SqliteStatement":
        if self._of_sqlite is None:
            self._of_sqlite = _SqliteStatement(self._build(True), dialect)
        return self._of_sqlite


class _SqliteStatement:
    """The compiled text for SQLite's driver, with converters of its parameters and columns."""

    def __init__(self, statement: Any, dialect: Dialect):
        compiled = statement.compile(dialect=dialect)
        self._sql = str(compiled)
        self._known = {
            name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required
        }
        self._places: list[tuple[str, Converter]] = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup
        ]
        columns = list(statement.selected_columns) if isinstance(statement, Select) else []
        self._columns: list[Converter] = [
            column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns
        ]
        self._converted = [i for i, convert in enumerate(self._columns) if convert is not None]
        # A count has no column name.
        names = [getattr(column, "name", "") or "" for column in columns]
        self._row = namedtuple("Row", names, rename=True)  # type: ignore[misc]

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        found = self._run(connection, "execute", self._convert_parameters(parameters)).fetchall()
        return [self._row(*self._convert_row(row)) for row in found]

    def write(self, connection: Connection, parameters: Sequence[Mapping[str, Any]]) -> None:
        self._run(
            connection, "executemany", [self._convert_parameters(each) for each in parameters]
        )

    def _convert_parameters(self, parameters: Mapping[str, Any]) -> list[Any]:
        values = []
        try:
            for name, convert in self._places:
                value = parameters[name] if name in parameters else self._known[name]
                if isinstance(value, list):
                    value = json.dumps(value, ensure_ascii=False)
                values.append(value if convert is None else convert(value))
        except (
            ValueError,
            TypeError,
            KeyError,
        ) as cause:  # a time without a zone, or a missing parameter
            raise StatementError(str(cause), self._sql, None, cause) from cause
        return values

    def _convert_row(self, row: Sequence[Any]) -> Sequence[Any]:
        if not self._converted:
            return row
        read = list(row)
        for i in self._converted:
            convert = self._columns[i]
            assert convert is not None
            read[i] = convert(read[i])
        return read

    def _run(self, connection: Connection, how: str, values: Any) -> sqlite3.Cursor:
        driver: Any = connection.connection.driver_connection
        try:
            cursor: sqlite3.Cursor = getattr(driver, how)(self._sql, values)
        except sqlite3.Error as cause:
            raise DBAPIError.instance(
                self._sql, None, cause, sqlite3.Error, dialect=connection.dialect
            ) from cause
        return cursor
