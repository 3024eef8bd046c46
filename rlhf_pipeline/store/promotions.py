"""Which version was champion when, by whom and why. Knows the moves of the alias; the registry
holds the models.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from rlhf_pipeline.records import Promotion, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import promotions


class Promotions:
    """Append-only history per model name."""

    def __init__(self, database: Database):
        self._database = database

    def record(self, promotion: Promotion) -> bool:
        """Store a promotion; False, and nothing stored, when that version already is the
        champion.
        """
        with audited_transaction(self._database) as (connection, ledger):
            of_model = (
                self._database.in_project(promotions),
                promotions.c.model_name == promotion.model_name,
            )
            newest = (
                select(promotions.c.version)
                .where(*of_model)
                .order_by(promotions.c.promotion_id.desc())
                .limit(1)
            )
            if connection.execute(newest).scalar() == promotion.version:
                return False
            last = (
                connection.execute(
                    select(func.max(promotions.c.promotion_id)).where(
                        self._database.in_project(promotions)
                    )
                ).scalar()
                or 0
            )
            columns = promotion.model_dump(include={"model_name", "version", "promoted_at"})
            record = json_of(promotion, "The promotion")
            self._database.insert(
                connection, promotions, [{**columns, "promotion_id": last + 1, "record": record}]
            )
            label = promotion.label
            ledger.append(
                actor=promotion.actor,
                action="model.promote",
                object_id=label,
                digest=content_hash(record),
            )
        return True

    def champion(self, model_name: str) -> Promotion | None:
        """The latest promotion recorded; None before the first."""
        return next(iter(self.history(model_name)[-1:]), None)

    def champion_at(self, model_name: str, when: datetime) -> Promotion | None:
        """The promotion in force at a moment, by its `promoted_at`; None before the first."""
        earlier = self._read(
            promotions.c.model_name == model_name, promotions.c.promoted_at <= when
        )
        return max(
            enumerate(earlier), key=lambda item: (item[1].promoted_at, item[0]), default=(0, None)
        )[1]

    def history(self, model_name: str) -> list[Promotion]:
        """Oldest first."""
        return self._read(promotions.c.model_name == model_name)

    def _read(self, *conditions: Any) -> list[Promotion]:
        wanted = (
            select(promotions.c.record)
            .where(self._database.in_project(promotions), *conditions)
            .order_by(promotions.c.promotion_id)
        )
        with self._database.read_transaction() as connection:
            return [Promotion.from_json(text) for text in connection.execute(wanted).scalars()]
