"""Versions of the evaluation set: frozen prompts on which policies are compared."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, RowMapping, select

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.audit import EVALUATION_SET_ADD, audited_transaction, row_digest
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import evaluation_sets

if TYPE_CHECKING:
    import pandas as pd


class EvaluationSet(Record):
    """One version: where its prompts come from, how many they are, and their content hash."""

    version: int
    origin: str
    prompts_hash: str
    n_prompts: int
    created_at: datetime

    @property
    def label(self) -> str:
        return f"evaluation set {self.version}"


class EvaluationSets(Repository):
    """A version is never changed; results on different versions do not compare."""

    def latest(self) -> EvaluationSet | None:
        return next(iter(self.all()), None)

    def all(self) -> list[EvaluationSet]:
        """Newest first."""
        query = select(*(evaluation_sets.c[name] for name in EvaluationSet.model_fields)).order_by(
            evaluation_sets.c.version.desc()
        )
        return [_build(row) for row in self._database.fetch_mappings(query)]

    def prompts(self, version: int) -> pd.DataFrame:
        """PROMPTS of one version. Raises NotFound."""
        import pandas as pd

        record = self._database.fetch_scalar(
            select(evaluation_sets.c.prompts).where(evaluation_sets.c.version == version)
        )
        if record is None:
            raise NotFound(f"There is no version {version} of the evaluation set.")
        return check_frame(pd.DataFrame(json.loads(record)), PROMPTS)

    def add(self, prompts: pd.DataFrame, *, origin: str, prompts_hash: str) -> EvaluationSet:
        """Freeze PROMPTS as the next version; the latest one where it is from the same origin."""
        rows = check_frame(prompts, PROMPTS).to_json(orient="records", force_ascii=False)
        with audited_transaction(self._database) as (connection, ledger):
            latest = self._latest(connection)
            if latest is not None and latest.origin == origin:  # another process was first
                return latest
            row = {
                "version": latest.version + 1 if latest else 1,
                "origin": origin,
                "prompts_hash": prompts_hash,
                "n_prompts": len(prompts),
                "prompts": rows,
                "created_at": self._database.clock.now().astimezone(UTC),
            }
            self._database.insert(connection, evaluation_sets, [row])
            ledger.append(
                actor="pipeline",
                action=EVALUATION_SET_ADD,
                object_id=str(row["version"]),
                digest=row_digest(evaluation_sets, row),
            )
        return EvaluationSet(**{name: row[name] for name in EvaluationSet.model_fields})

    def _latest(self, connection: Connection) -> EvaluationSet | None:
        query = (
            select(*(evaluation_sets.c[name] for name in EvaluationSet.model_fields))
            .order_by(evaluation_sets.c.version.desc())
            .limit(1)
        )
        row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _build(row)


def _build(row: RowMapping) -> EvaluationSet:
    return EvaluationSet.model_validate(dict(row))
