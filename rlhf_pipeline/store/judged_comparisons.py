"""Reads the comparisons that people judged on a day, with the prediction made before the votes."""

from typing import NamedTuple

from sqlalchemy import and_, case, func, select

from rlhf_pipeline.records import AnnotatorKind, Choice
from rlhf_pipeline.store.counting import is_counting
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import comparisons, predictions, votes


class JudgedRow(NamedTuple):
    """Counting votes of people for each side and for neither, and the first model's scores and
    calibrated P(a preferred); None for a comparison that no model predicted.
    """

    comparison_id: str
    prompt_id: str
    category: str
    n_a: int
    n_b: int
    n_neither: int
    reward_model: str | None
    score_a: float | None
    score_b: float | None
    p_a: float | None


def read_judged(database: Database, day: str, *, limit: int) -> tuple[list[JudgedRow], bool]:
    """By id, of the day's newest votes; and whether the day has more than `limit`. Skips are left
    out.
    """
    newest = (
        select(votes.c.comparison_id, votes.c.choice)
        .where(
            database.in_project(votes),
            votes.c.day == day,
            votes.c.choice != Choice.SKIP.value,
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            is_counting(database, None),
        )
        .order_by(votes.c.seq.desc())
        .limit(limit + 1)
        .subquery()
    )
    is_a, is_b = (newest.c.choice == side.value for side in (Choice.A, Choice.B))
    tally = (
        select(
            newest.c.comparison_id,
            func.sum(case((is_a, 1), else_=0)).label("n_a"),
            func.sum(case((is_b, 1), else_=0)).label("n_b"),
            func.sum(case((is_a | is_b, 0), else_=1)).label("n_neither"),
        )
        .group_by(newest.c.comparison_id)
        .subquery()
    )
    voted = and_(
        database.in_project(comparisons), comparisons.c.comparison_id == tally.c.comparison_id
    )
    predicted = and_(
        database.in_project(predictions), predictions.c.comparison_id == tally.c.comparison_id
    )
    wanted = (
        select(
            tally.c.comparison_id,
            comparisons.c.prompt_id,
            comparisons.c.category,
            tally.c.n_a,
            tally.c.n_b,
            tally.c.n_neither,
            predictions.c.reward_model,
            predictions.c.score_a,
            predictions.c.score_b,
            predictions.c.p_calibrated,
        )
        .join(comparisons, voted)
        .outerjoin(predictions, predicted)
        # last the one that counts: the first to predict, as in `reflection.served_predictions`
        .order_by(
            tally.c.comparison_id,
            predictions.c.predicted_at.desc(),
            predictions.c.reward_model.desc(),
        )
    )
    found = {row.comparison_id: JudgedRow(*row) for row in database.fetch_all(wanted)}
    rows = list(found.values())
    return rows, sum(row.n_a + row.n_b + row.n_neither for row in rows) > limit
