"""Selects comparisons that a reward model predicted and people judged."""

from sqlalchemy import and_, func, literal, select

from rlhf_pipeline.records import AnnotatorKind, Choice
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import predictions, votes

SIDES = (Choice.A.value, Choice.B.value)


def find_newest_predictor(database: Database) -> str | None:
    """The reward model of the last prediction of the newest predicted day; None before the
    first.
    """
    newest = (
        select(func.max(predictions.c.day))
        .where(database.in_project(predictions))
        .scalar_subquery()
    )
    wanted = (
        select(predictions.c.reward_model)
        .where(database.in_project(predictions), predictions.c.day == newest)
        .order_by(predictions.c.predicted_at.desc(), predictions.c.reward_model.desc())
        .limit(1)
    )
    with database.read_transaction() as connection:
        found: str | None = connection.execute(wanted).scalar()
        return found


def has_predicted(database: Database, reward_model: str, calibrator: str | None = None) -> bool:
    """Whether the reward model made a prediction, with `calibrator` through that calibrator."""
    wanted = (
        select(literal(1))
        .select_from(predictions)
        .where(database.in_project(predictions), predictions.c.reward_model == reward_model)
    )
    if calibrator is not None:
        wanted = wanted.where(predictions.c.calibrator == calibrator)
    return database.fetch_scalar(wanted.limit(1)) is not None


def find_newest_voted(
    database: Database, reward_model: str, calibrator: str | None = None, *, limit: int
) -> tuple[list[str], bool]:
    """Ids of the comparisons predicted by a reward model on which people cast its `limit` newest
    votes for a side, each once; and whether there are more such votes.
    """
    predicted = and_(
        database.in_project(predictions),
        predictions.c.comparison_id == votes.c.comparison_id,
        predictions.c.reward_model == reward_model,
    )
    if calibrator is not None:
        predicted = and_(predicted, predictions.c.calibrator == calibrator)
    wanted = (
        select(votes.c.comparison_id)
        .where(
            database.in_project(votes),
            votes.c.choice.in_(SIDES),
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            select(literal(1)).select_from(predictions).where(predicted).exists(),
        )
        .order_by(votes.c.seq.desc())
        .limit(limit + 1)
    )
    found = list(database.fetch_scalars(wanted))
    return list(dict.fromkeys(found[:limit])), len(found) > limit
