"""Statements that are built once for every project: what a vote's transaction asks. Knows the columns every row carries; knows no rule.

To build one takes SQLAlchemy as long as SQLite takes to answer it, and whoever casts holds the write lock meanwhile.
"""

from typing import Any

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam

from rlhf_pipeline.store.engine import Database


def scoped(table: Any) -> ColumnElement[bool]:
    """The condition that a row belongs to the project of `scope_of`."""
    return and_(table.c.organization_id == bindparam("scope_organization"), table.c.project_id == bindparam("scope_project"))


def among(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """The condition that a column is one of the parameter `values`."""
    values: BindParameter[Any] = bindparam("values", expanding=True)
    return column.in_(values)


def scope_of(database: Database, **parameters: Any) -> dict[str, Any]:
    """Parameters of a statement for one project."""
    return {"scope_organization": database.organization, "scope_project": database.project, **parameters}
