"""Whether what the store holds is whole: pages, counts, references, calibrators, order of text. Changes nothing."""

from sqlalchemy import ColumnElement, and_, exists, func, select, text

from rlhf_pipeline.records import content_hash
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import audit, calibrations, metadata


def damage(database: Database) -> list[str]:
    """What SQLite's own check finds; empty where all is well, and on Postgres, whose server verifies the pages that it reads."""
    if not database.is_sqlite:
        return []
    with database.reading() as connection:
        found = connection.execute(text("PRAGMA integrity_check")).scalars().all()
    return [] if found == ["ok"] else list(found)


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


def changed_calibrators(database: Database) -> list[str]:
    """Calibrators and imported reports whose text is not what the audit chain has a digest of."""
    digests = select(audit.c.object_id, audit.c.payload_digest).where(database.mine(audit), audit.c.action.like("calibration.%"))
    columns = (calibrations.c.reward_model, calibrations.c.version, calibrations.c.report, calibrations.c.calibrator)
    with database.reading() as connection:
        linked = [(label.rsplit(" ", 2), digest) for label, digest in connection.execute(digests)]
        known = {(reward_model, int(version)): digest for (reward_model, _, version), digest in linked}
        return [
            f"The calibration {row.version} of {row.reward_model} was changed in the store."
            for row in connection.execute(select(*columns).where(database.mine(calibrations)))
            if known.get((row.reward_model, row.version)) != content_hash(row.report, row.calibrator)
        ]


def sorts_by_code_point(database: Database) -> bool:
    """Whether the database sorts text as Python and SQLite do."""
    with database.reading() as connection:
        return bool(connection.execute(text("SELECT 'a' > 'B' AND 'é' > 'z'")).scalar_one())
