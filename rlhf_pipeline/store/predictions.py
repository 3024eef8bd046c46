"""Predictions as written before the votes. Knows how to read them; `comparisons.publish` writes them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from sqlalchemy import Row, func, select

from rlhf_pipeline.frames import PREDICTIONS
from rlhf_pipeline.store.conversion import batches, frame_of
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import predictions


class Predictions:
    """Append-only; one row per comparison and reward model."""

    def __init__(self, database: Database):
        self._database = database

    def for_days(self, days: Sequence[str]) -> pd.DataFrame:
        """PREDICTIONS of `days`, of all reward models, in a fixed order."""
        wanted = (
            select(*(predictions.c[name] for name in PREDICTIONS.columns))
            .where(self._database.mine(predictions), predictions.c.day.in_(sorted(set(days))))
            .order_by(predictions.c.day, predictions.c.comparison_id, predictions.c.reward_model)
        )
        with self._database.reading() as connection:
            return frame_of(connection.execute(wanted).all(), PREDICTIONS)

    def of(self, comparison_ids: Sequence[str]) -> pd.DataFrame:
        """PREDICTIONS on these comparisons, of any day and all reward models, in order of id."""
        rows: list[Row[Any]] = []
        with self._database.reading() as connection:
            for ids in batches(sorted(set(comparison_ids)), MAX_ROWS):
                columns = (predictions.c[name] for name in PREDICTIONS.columns)
                wanted = select(*columns).where(self._database.mine(predictions), predictions.c.comparison_id.in_(ids))
                rows += connection.execute(wanted.order_by(predictions.c.comparison_id, predictions.c.reward_model)).all()
        return frame_of(rows, PREDICTIONS)

    def count(self) -> int:
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(predictions).where(self._database.mine(predictions))).scalar_one()
