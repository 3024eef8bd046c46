"""Whether what the store holds is whole: counts, references, order of text. Changes nothing."""

from sqlalchemy import ColumnElement, and_, exists, func, select, text

from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import metadata


def counts(database: Database) -> dict[str, int]:
    """The project's rows of each table."""
    with database.reading() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(table).where(database.mine(table))).scalar_one()
            for name, table in sorted(metadata.tables.items())
        }


def orphans(database: Database) -> list[str]:
    """References that lead nowhere, one line per foreign key; empty where all is well. A restored or hand-edited file may hold some."""
    found = []
    with database.reading() as connection:
        for table in metadata.sorted_tables:
            for key in table.foreign_key_constraints:
                parent = key.referred_table
                same: list[ColumnElement[bool]] = [element.parent == element.column for element in key.elements]
                given = and_(*(element.parent.is_not(None) for element in key.elements))
                lost = select(func.count()).select_from(table).where(given, ~exists(select(1).select_from(parent).where(and_(*same))))
                n = connection.execute(lost).scalar_one()
                if n:
                    found.append(f"{n} {table.name} refer to {parent.name} that are not there")
    return found


def sorts_by_code_point(database: Database) -> bool:
    """Whether the database sorts text as Python and SQLite do."""
    with database.reading() as connection:
        return bool(connection.execute(text("SELECT 'a' > 'B' AND 'é' > 'z'")).scalar_one())
