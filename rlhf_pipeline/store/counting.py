"""Which votes stand and which count. Knows the two rules as SQL; asks nothing.

Standing: the last revision of each pass. Counting: the standing vote of an annotator's last pass
over a comparison.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, literal, or_, select, tuple_

from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import votes

LATEST = 2**62  # above any seq


def is_standing(
    database: Database,
    vote: Any,
    *,
    up_to_seq: int | None = None,
    before: datetime | None = None,
) -> ColumnElement[bool]:
    """That no vote superseded `vote` (the table or an alias of it): until now, up to a seq, or
    received before a time.
    """
    later = votes.alias("later")
    known = [database.in_project(later), later.c.supersedes == vote.c.vote_id]
    if up_to_seq is not None:
        # The first is always so; said, because Postgres would else read all votes for a page of 50.
        known += [later.c.seq > vote.c.seq, later.c.seq <= up_to_seq]
    if before is not None:
        known.append(later.c.received_at < before)
    return ~select(literal(1)).select_from(later).where(*known).exists()


def is_counting(database: Database, up_to_seq: int | None) -> ColumnElement[bool]:
    """That a vote counts: no later pass, and no later revision of its pass, by its annotator up to
    the seq.
    """
    limit = LATEST if up_to_seq is None else up_to_seq
    return and_(database.in_project(votes), votes.c.seq <= limit, ~_is_displaced(database, limit))


def is_counting_on(
    database: Database, days: Sequence[str], up_to_seq: int | None
) -> ColumnElement[bool]:
    """That a vote was cast on `days` and counts, asked the other way round: which votes displaced
    one of these days?

    They are few, and asking each vote of a day for its successors reads a page for each from all
    over the table. A vote as first cast is displaced by one that carries its day, because the first
    that does finds it counting. A revision of a pass that was not the last one any more never
    counted: its successor is older and carries another day, so it is asked for.
    """
    limit = LATEST if up_to_seq is None else up_to_seq
    later, earlier = votes.alias("later"), votes.alias("earlier")
    displaced = (
        select(earlier.c.seq)
        .select_from(later)
        .join(earlier, and_(database.in_project(earlier), _is_later_turn(later, earlier)))
        .where(database.in_project(later), later.c.displaced_day.in_(days), later.c.seq <= limit)
    )
    of_days = database.in_project(votes), votes.c.day.in_(days), votes.c.seq <= limit
    return and_(
        *of_days,
        votes.c.seq.not_in(displaced),
        or_(votes.c.revision_no == 0, ~_is_displaced(database, limit)),
    )


def _is_displaced(database: Database, limit: int) -> ColumnElement[bool]:
    later = votes.alias("later")
    return (
        select(literal(1))
        .select_from(later)
        .where(database.in_project(later), _is_later_turn(later, votes), later.c.seq <= limit)
        .exists()
    )


def _is_later_turn(later: Any, vote: Any) -> ColumnElement[bool]:
    """That `later` is a later pass over the same comparison by the same annotator, or a later
    revision of the same pass.
    """
    # One comparison of pairs: a range of the index, mostly empty, and not a look at each of the
    # annotator's votes.
    comes_later = tuple_(later.c.pass_no, later.c.revision_no) > tuple_(
        vote.c.pass_no, vote.c.revision_no
    )
    return and_(
        later.c.comparison_id == vote.c.comparison_id,
        later.c.annotator_id == vote.c.annotator_id,
        comes_later,
    )
