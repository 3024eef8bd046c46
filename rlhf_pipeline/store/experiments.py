"""Experiments on served versions, and the answers and feedback that they are measured by."""

import json
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, func, or_, select

from rlhf_pipeline.core.errors import ExperimentConflict, NotFound
from rlhf_pipeline.core.experiments import LIVE, Arm, Experiment
from rlhf_pipeline.core.frames import IDENTICAL
from rlhf_pipeline.store.answers import COMPLETE, FAILED
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.card_draw import ANYBODY, EXPERIMENT_PRIORITY, IS_UNFINISHED
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import answers, comparisons, experiments, feedback, offers

PAIR_SOURCE = "experiment"  # of comparisons of both arms' answers to a served request


class Exposure(NamedTuple):
    """An answer within an experiment. `unit` is its session, or its own id without one;
    `latency_s` is None of an incomplete one, `cost` in billionths.
    """

    answer_id: str
    unit: str
    arm: Arm
    split: float
    is_failed: bool
    latency_s: float | None
    cost: int | None


class Rating(NamedTuple):
    """Thumbs, 0 or 1, or a rating, 1 to 5, of an answer."""

    answer_id: str
    kind: str
    value: float


class ExperimentLog(Repository):
    """At most one is live: running or paused."""

    def add(self, new: Experiment) -> Experiment:
        """Store one with the next number. Raises ExperimentConflict for a second live one."""
        with audited_transaction(self._database) as (connection, ledger):
            number = self._database.next_number(connection, experiments.c.experiment_id)
            new = new.model_copy(update={"experiment_id": number})
            _refuse_second(connection, new)
            row = _row(new)
            self._database.insert(connection, experiments, [row])
            _link(ledger, new, row)
        return new

    def change(self, before: Experiment, after: Experiment) -> Experiment:
        """Replace one. Raises ExperimentConflict if it is not as it was read, or for a second live
        one.
        """
        this = experiments.c.experiment_id == after.experiment_id
        with audited_transaction(self._database) as (connection, ledger):
            stored = connection.execute(select(experiments.c.record).where(this)).scalar_one()
            if Experiment.from_json(stored) != before:
                raise ExperimentConflict(
                    f"Experiment {after.experiment_id} was changed meanwhile. Look at it again."
                )
            _refuse_second(connection, after)
            row = _row(after)
            connection.execute(experiments.update().where(this).values(row))
            _link(ledger, after, row)
        return after

    def get(self, experiment_id: int) -> Experiment:
        """Raises NotFound."""
        query = select(experiments.c.record).where(experiments.c.experiment_id == experiment_id)
        text = self._database.fetch_scalar(query)
        if text is None:
            raise NotFound(f"There is no experiment {experiment_id}. `rlhf experiments list`.")
        return Experiment.from_json(text)

    def all(self) -> list[Experiment]:
        """The newest first."""
        query = select(experiments.c.record).order_by(experiments.c.experiment_id.desc())
        return [Experiment.from_json(text) for text in self._database.fetch_scalars(query)]

    def live(self) -> Experiment | None:
        query = select(experiments.c.record).where(experiments.c.status.in_(LIVE))
        text = self._database.fetch_scalar(query)
        return None if text is None else Experiment.from_json(text)

    def exposures(self, experiment_id: int) -> list[Exposure]:
        """In the order in which they were asked for."""
        column = answers.c
        query = (
            select(
                column.answer_id,
                func.coalesce(column.session_id, column.answer_id),
                *(column.arm, column.traffic_split, column.finish_reason),
                *(column.latency_s, column.cost),
            )
            .where(column.experiment_id == experiment_id)
            .order_by(column.created_at, column.answer_id)
        )
        return [
            Exposure(
                *(answer_id, unit, arm, split, reason == FAILED),
                latency_s if reason in COMPLETE else None,
                cost,
            )
            for answer_id, unit, arm, split, reason, latency_s, cost in self._database.fetch_all(
                query
            )
        ]

    def has_place(self, comparison_id: str, most: int) -> bool:
        """Whether fewer than `most` cards of the last day wait for a vote, and this comparison was
        not offered yet.
        """
        since = self._database.clock.now() - timedelta(days=1)
        n_waiting = self._database.count(
            offers,
            IS_UNFINISHED,
            offers.c.reserved_for == ANYBODY,
            offers.c.priority == EXPERIMENT_PRIORITY,
            offers.c.offered_at >= since,
        )
        is_known = comparisons.c.comparison_id == comparison_id
        return n_waiting < most and not self._database.count(comparisons, is_known)

    def pairs(self, experiment: Experiment) -> dict[str, Arm | None]:
        """comparison_id -> the arm of its side a, or None where both arms answered alike; in the
        order drawn, without what people flagged.
        """
        if experiment.start_date is None:
            return {}
        column = comparisons.c
        query = (
            select(column.comparison_id, column.flag, column.model_version_a)
            .where(
                column.source == PAIR_SOURCE,
                or_(column.flag.is_(None), column.flag == IDENTICAL),
                column.published_at >= experiment.start_date,
            )
            .order_by(column.published_at, column.comparison_id)
        )
        if experiment.end_date is not None:
            query = query.where(column.published_at <= experiment.end_date)
        return {
            comparison_id: None
            if flag == IDENTICAL
            else "treatment"
            if version == experiment.treatment_model_id
            else "control"
            for comparison_id, flag, version in self._database.fetch_all(query)
        }

    def ratings(self, since: datetime, until: datetime | None = None) -> list[Rating]:
        """Thumbs and ratings of answers up to a moment, oldest first; of one answer the last of
        each counts, in the place of the first.
        """
        column = feedback.c
        query = (
            select(column.kind, column.record)
            .where(column.kind.in_(("thumbs", "rating")), column.created_at >= since)
            .order_by(column.feedback_id)
        )
        if until is not None:
            query = query.where(column.created_at <= until)
        latest: dict[tuple[str, str], float] = {}
        for kind, record in self._database.fetch_all(query):
            entry = json.loads(record)
            if entry.get("answer_id") and entry.get("value") is not None:
                latest[entry["answer_id"], kind] = float(entry["value"])
        return [Rating(answer_id, kind, value) for (answer_id, kind), value in latest.items()]


def _row(experiment: Experiment) -> dict[str, object]:
    return {
        **experiment.model_dump(include={"experiment_id", "status"}),
        "record": json_of(experiment, f"Experiment {experiment.name}"),
    }


def _link(ledger: Ledger, experiment: Experiment, row: dict[str, object]) -> None:
    act = experiment.acts[-1]
    ledger.append(
        actor=act.actor,
        action=f"experiment.{act.act}",
        object_id=str(experiment.experiment_id),
        digest=row_digest(experiments, row),
    )


def _refuse_second(connection: Connection, experiment: Experiment) -> None:
    other = select(experiments.c.experiment_id).where(
        experiments.c.status.in_(LIVE), experiments.c.experiment_id != experiment.experiment_id
    )
    number = connection.execute(other).scalar()
    if experiment.is_live and number is not None:
        raise ExperimentConflict(
            f"Experiment {number} is running or paused, and one at a time is. End it first."
        )
