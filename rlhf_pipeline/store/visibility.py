"""SQL conditions for the votes that a user who may vote can see.

Visible are their own votes, and all votes on comparisons that they have judged.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, literal, or_, select, union_all

from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.judgements import is_standing_judgement
from rlhf_pipeline.store.schema import votes

# own votes, up to which looking up the votes on judged comparisons is faster than searching the
# list for them
FEW = 5_000


def judged_ids(database: Database, reader_id: str) -> Select[Any]:
    """Ids of the comparisons with a standing judgement of the reader, skips excluded."""
    judged = votes.alias("judged")
    return select(judged.c.comparison_id).where(is_standing_judgement(database, judged, reader_id))


def has_judged(database: Database, reader_id: str, comparison_id: Any) -> ColumnElement[bool]:
    """The comparison is one of `judged_ids`, for queries that check row by row."""
    own = votes.alias("own")
    return (
        select(literal(1))
        .where(
            is_standing_judgement(database, own, reader_id), own.c.comparison_id == comparison_id
        )
        .exists()
    )


def is_visible_vote(database: Database, reader_id: str) -> ColumnElement[bool]:
    """The vote is visible to the reader.

    The votes on a few judged comparisons are looked up, however old they are; for a reader who
    judged many, the list is searched.
    """
    if _has_few_votes(database, reader_id):
        return votes.c.seq.in_(_select_visible_seqs(database, reader_id))
    return or_(
        votes.c.annotator_id == reader_id, has_judged(database, reader_id, votes.c.comparison_id)
    )


def filter_judged(database: Database, reader_id: str, comparison_ids: Iterable[str]) -> set[str]:
    """The comparisons that the reader has judged."""
    judged = select(votes.c.comparison_id).where(is_standing_judgement(database, votes, reader_id))
    rows = database.fetch_among(judged, votes.c.comparison_id, comparison_ids)
    return {row.comparison_id for row in rows}


def _select_visible_seqs(database: Database, reader_id: str) -> Any:
    own, shared = votes.alias("own"), votes.alias("shared")
    return union_all(
        select(own.c.seq).where(database.in_project(own), own.c.annotator_id == reader_id),
        select(shared.c.seq).where(
            database.in_project(shared), shared.c.comparison_id.in_(judged_ids(database, reader_id))
        ),
    )


def _has_few_votes(database: Database, reader_id: str) -> bool:
    some = (
        select(literal(1))
        .where(database.in_project(votes), votes.c.annotator_id == reader_id)
        .limit(FEW + 1)
    )
    return len(database.fetch_scalars(some)) <= FEW
