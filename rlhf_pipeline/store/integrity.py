"""Read-only checks of the store: references, calibrators, taste changes, clocks."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import or_, select

from rlhf_pipeline.records import TasteChange, content_hash
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import audit, calibrations, votes
from rlhf_pipeline.store.taste_changes import (
    ADD,
    RETRACT,
    TasteChangeLog,
    object_id_of,
    taste_change_digest,
)


def find_votes_after(database: Database, moment: datetime) -> list[int]:
    """Numbers of the votes that say that they were cast after this moment."""
    ahead = or_(votes.c.received_at > moment, votes.c.voted_at > moment)
    return list(database.fetch_scalars(select(votes.c.seq).where(ahead).order_by(votes.c.seq)))


def find_orphans(database: Database) -> list[str]:
    """Rows of an edited or damaged SQLite file that refer to missing ones; Postgres has none."""
    if not database.is_sqlite:
        return []
    with database.read_transaction() as connection:
        found = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    numbers = Counter((table, parent) for table, _, parent, _ in found)
    return [f"{n} {table} refer to missing {parent}." for (table, parent), n in numbers.items()]


def find_changed_calibrators(database: Database) -> list[str]:
    """Calibrators and imported reports whose text differs from the digest in the audit chain."""
    digests = select(audit.c.object_id, audit.c.payload_digest).where(
        audit.c.action.like("calibration.%")
    )
    columns = (
        calibrations.c.reward_model,
        calibrations.c.version,
        calibrations.c.report,
        calibrations.c.calibrator,
    )
    with database.read_transaction() as connection:
        linked = [(label.rsplit(" ", 2), digest) for label, digest in connection.execute(digests)]
        known = {
            (reward_model, int(version)): digest for (reward_model, _, version), digest in linked
        }
        return [
            f"The calibration {row.version} of {row.reward_model} was changed in the store."
            for row in connection.execute(select(*columns))
            if known.get((row.reward_model, row.version))
            != content_hash(row.report, row.calibrator)
        ]


def changed_taste_changes(database: Database) -> list[str]:
    """Taste changes that differ from the digests in the audit chain, and those that were
    removed.
    """
    digests = select(audit.c.object_id, audit.c.action, audit.c.payload_digest).where(
        audit.c.action.in_([ADD, RETRACT])
    )
    with database.read_transaction() as connection:
        linked = {
            (row.object_id, row.action): row.payload_digest for row in connection.execute(digests)
        }
    changes = TasteChangeLog(database).all()
    changed = [change for change in changes if not _is_as_linked(change, linked)]
    lost = {name for name, _ in linked} - {object_id_of(change) for change in changes}
    return [f"The {object_id_of(change)} was changed in the store." for change in changed] + [
        f"The {name} was removed from the store." for name in sorted(lost)
    ]


def _is_as_linked(change: TasteChange, linked: Mapping[tuple[str, str], str]) -> bool:
    added, retracted = (linked.get((object_id_of(change), action)) for action in (ADD, RETRACT))
    as_added = change.model_copy(
        update={"retracted_at": None, "retracted_by": None, "retraction_reason": None}
    )
    if taste_change_digest(change) != (retracted or taste_change_digest(as_added)):
        return False
    return taste_change_digest(as_added) == added
