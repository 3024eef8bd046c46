"""The log of served answers: version, latency, tokens and errors, with texts if kept."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from sqlalchemy import RowMapping, and_, case, func, select

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.experiments import Arm
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import answers

FAILED = "error"  # finish reason of an answer that failed
COMPLETE = ("stop", "length")  # of one that its client got


class ServedAnswer(Record):
    """A row of the log. `cost` is in billionths of the currency of the prices, None without."""

    answer_id: str
    version: str
    session_id: str | None = None
    created_at: datetime
    latency_s: float
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost: int | None = None
    finish_reason: str = "stop"
    error: str | None = None
    prompt: str | None = None
    completion: str | None = None
    experiment_id: int | None = None
    arm: Arm | None = None
    traffic_split: float | None = None


class AnswerLog(Repository):
    """One row an answer, until `prune`."""

    def add(self, answer: ServedAnswer) -> None:
        with self._database.write_transaction() as connection:
            self._database.insert(connection, answers, [answer.model_dump()])

    def get(self, answer_id: str) -> ServedAnswer:
        """Raises NotFound."""
        rows = self._database.fetch_mappings(
            select(answers).where(answers.c.answer_id == answer_id)
        )
        if not rows:
            raise NotFound(
                f"No answer {answer_id!r} is logged. Send the id of an answer that is younger than "
                "`retention.answer_days`, or the texts without an id."
            )
        return ServedAnswer.model_validate(dict(rows[0]))

    def prune(self, before: datetime) -> int:
        """Delete answers older than a moment; the number of them."""
        with self._database.write_transaction() as connection:
            return connection.execute(
                answers.delete().where(answers.c.created_at < before)
            ).rowcount

    def sum_day(self, day: date) -> list[RowMapping]:
        """A row a version that answered on the day: `n` answers and `n_errors`; of the `n_complete`
        ones the sums of `seconds` and `seconds_squared`, and the quantiles `p50` and `p95`; tokens;
        and `n_priced` with their `cost`.
        """
        start = datetime.combine(day, time(), UTC)
        column = answers.c
        is_complete = column.finish_reason.in_(COMPLETE)
        alike = (column.version, is_complete)
        rows = (
            select(
                *(column.version, column.latency_s, column.cost, column.finish_reason),
                (column.n_prompt_tokens + column.n_tokens).label("tokens"),
                func.row_number().over(partition_by=alike, order_by=column.latency_s).label("rank"),
                func.count().over(partition_by=alike).label("n_alike"),
            )
            .where(column.created_at >= start, column.created_at < start + timedelta(days=1))
            .subquery()
        )
        row = rows.c
        complete = row.finish_reason.in_(COMPLETE)

        def quantile(share: float) -> Any:
            within = and_(complete, row.rank < share * row.n_alike + 1)
            return func.max(case((within, row.latency_s)))

        sums = {
            "n": func.count(),
            "n_errors": func.count(case((row.finish_reason == FAILED, 1))),
            "n_complete": func.count(case((complete, 1))),
            "seconds": func.sum(case((complete, row.latency_s), else_=0.0)),
            "seconds_squared": func.sum(case((complete, row.latency_s * row.latency_s), else_=0.0)),
            "tokens": func.sum(row.tokens),
            "n_priced": func.count(row.cost),
            "cost": func.sum(row.cost),
            "p50": quantile(0.5),
            "p95": quantile(0.95),
        }
        query = select(row.version, *(value.label(name) for name, value in sums.items()))
        return list(
            self._database.fetch_mappings(query.group_by(row.version).order_by(row.version))
        )
