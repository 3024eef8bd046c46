"""The rules of counting as SQL conditions; `counting` and `teaching` of `feedback/votes` apply the
same to frames.

Standing: the last revision of each pass. Counting: the standing vote of an annotator's last pass
over a comparison. Teaching: what preference pairs are made of.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, literal, or_, select, true, tuple_

from rlhf_pipeline.core.records import GATE_SOURCE, AnnotatorKind, Choice
from rlhf_pipeline.store.schema import adjudications, comparisons, votes

LATEST = 2**62  # above any seq
NO_QUARANTINE: Mapping[str, int] = {}


def is_standing(
    vote: Any,
    *,
    up_to_seq: int | None = None,
    before: datetime | None = None,
) -> ColumnElement[bool]:
    """No vote superseded `vote` (the table or an alias of it): until now, up to a seq, or received
    before a time.
    """
    later = votes.alias("later")
    conditions = [supersedes(later, vote)]
    if up_to_seq is not None:
        # The first is always true; without it Postgres reads all votes for a page of 50.
        conditions += [later.c.seq > vote.c.seq, later.c.seq <= up_to_seq]
    if before is not None:
        conditions.append(later.c.received_at < before)
    return ~select(literal(1)).select_from(later).where(*conditions).exists()


def supersedes(later: Any, vote: Any) -> ColumnElement[bool]:
    """`later` replaced `vote`; both are the table or an alias of it."""
    replaced: ColumnElement[bool] = later.c.supersedes == vote.c.vote_id
    return replaced


def is_counting(
    up_to_seq: int | None, quarantined: Mapping[str, int] = NO_QUARANTINE
) -> ColumnElement[bool]:
    """The annotator cast no later pass, and no later revision of the same pass, up to the seq.
    `quarantined`: by annotator the first vote that is left out, itself and as a later one.
    """
    limit = LATEST if up_to_seq is None else up_to_seq
    later = votes.alias("later")
    displaced = (
        select(literal(1))
        .select_from(later)
        .where(
            is_later_turn(later, votes),
            later.c.seq <= limit,
            is_outside(quarantined, later),
        )
    )
    return and_(votes.c.seq <= limit, is_outside(quarantined, votes), ~displaced.exists())


def is_teaching(up_to_seq: int | None, quarantined: Mapping[str, int]) -> ColumnElement[bool]:
    """The rule of `votes.teaching.teaching_votes`, without machine votes, for a query over `votes`
    and `comparisons`.
    """
    return and_(is_counting(up_to_seq, quarantined), is_usable(up_to_seq))


def is_usable(up_to_seq: int | None) -> ColumnElement[bool]:
    """Such a vote teaches where it counts: what no other vote decides."""
    limit = LATEST if up_to_seq is None else up_to_seq
    decided = (
        select(adjudications.c.choice)
        .where(
            adjudications.c.comparison_id == votes.c.comparison_id, adjudications.c.at_seq <= limit
        )
        .order_by(adjudications.c.adjudication_id.desc())
        .limit(1)
        .scalar_subquery()
    )
    return and_(
        func.coalesce(decided, votes.c.choice) == votes.c.choice,
        votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
        comparisons.c.repeat_of.is_(None),
        comparisons.c.flag.is_(None),
        comparisons.c.source.is_distinct_from(GATE_SOURCE),
    )


def is_outside(quarantined: Mapping[str, int], vote: Any) -> ColumnElement[bool]:
    """No quarantine leaves `vote` out; the table or an alias of it."""
    return and_(
        true(),
        *(
            or_(vote.c.annotator_id != annotator, vote.c.seq < first)
            for annotator, first in quarantined.items()
        ),
    )


def is_later_turn(later: Any, vote: Any) -> ColumnElement[bool]:
    """`later` is a later pass over the same comparison by the same annotator, or a later revision
    of the same pass.
    """
    # Comparing pairs reads a mostly empty range of the index, not all votes of the annotator.
    comes_later = tuple_(later.c.pass_no, later.c.revision_no) > tuple_(
        vote.c.pass_no, vote.c.revision_no
    )
    return and_(
        later.c.comparison_id == vote.c.comparison_id,
        later.c.annotator_id == vote.c.annotator_id,
        comes_later,
    )


def is_trainable(table: Any) -> ColumnElement[bool]:
    """Votes of the reward model itself, skips and votes for the gate teach nothing new."""
    of_gate = select(comparisons.c.comparison_id).where(comparisons.c.source == GATE_SOURCE)
    return and_(
        table.c.annotator_kind != AnnotatorKind.MACHINE.value,
        table.c.choice != Choice.SKIP.value,
        table.c.comparison_id.not_in(of_gate),
    )


def count_trainable(connection: Connection, after: int, until: int) -> int:
    """Votes with a seq above `after` and up to `until`: no machine's, no skips, no superseded
    ones, none for the gate.
    """
    of_range = (votes.c.seq > after, votes.c.seq <= until)
    replaced = votes.alias("replaced")
    # Queried from the few that supersede: looking for a successor of each vote takes twice as long.
    superseded = (
        select(func.count())
        .select_from(votes)
        .join(replaced, supersedes(votes, replaced))
        .where(
            *of_range,
            votes.c.supersedes.is_not(None),
            replaced.c.seq > after,
            is_trainable(replaced),
        )
    )
    cast = select(func.count()).select_from(votes).where(*of_range, is_trainable(votes))
    n_cast, n_gone = (connection.execute(query).scalar_one() for query in (cast, superseded))
    return n_cast - n_gone
