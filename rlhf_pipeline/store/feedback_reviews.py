"""Reviews of feedback: status, tags and notes of curators beside entries that never change.

A review of many entries has one id, by which it is undone. The newest review of an entry holds.
While all entries of a correction's comparison are rejected, its flag leaves its votes out.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time
from typing import Any, NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, and_, case, func, literal, select

from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview, ReviewedFeedback
from rlhf_pipeline.core.api_types.filters import FeedbackSelection
from rlhf_pipeline.core.errors import NotFound, ReviewConflict
from rlhf_pipeline.core.records import REJECTED_FLAG, FeedbackStatus, content_hash
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, Repository
from rlhf_pipeline.store.schema import comparisons, feedback, feedback_reviews

PENDING: FeedbackStatus = "pending"
_LATER = feedback_reviews.alias("later")
_IS_NEWEST = ~(
    select(literal(1))
    .where(
        _LATER.c.feedback_id == feedback_reviews.c.feedback_id,
        _LATER.c.review_id > feedback_reviews.c.review_id,
    )
    .exists()
)
_STATUS: ColumnElement[Any] = func.coalesce(feedback_reviews.c.status, PENDING)


# feedback with its newest review, and what of the review is read
REVIEWED = feedback.outerjoin(
    feedback_reviews, and_(feedback_reviews.c.feedback_id == feedback.c.feedback_id, _IS_NEWEST)
)
REVIEW_COLUMNS = (
    *(feedback_reviews.c[name] for name in ("status", "notes", "reviewed_by", "reviewed_at")),
    feedback_reviews.c.tags.label("curator_tags"),
)


def selection_of(only: FeedbackSelection) -> list[ColumnElement[bool]]:
    """The conditions of a selection, for a query of REVIEWED."""
    column = feedback.c
    names = ("feedback_id", "kind", "session_id", "created_by")
    filters = {name: getattr(only, name) for name in names}
    conditions = [column[name] == value for name, value in filters.items() if value]
    if only.since:
        conditions.append(column.created_at >= datetime.combine(only.since, time(), UTC))
    if only.until:
        conditions.append(column.created_at <= datetime.combine(only.until, time.max, UTC))
    if only.status and only.status != "all":
        conditions.append(only.status == _STATUS)
    if only.tag:
        tag = _write_tags([only.tag.lower()])[1:-1]
        conditions.append(feedback_reviews.c.tags.contains(tag, autoescape=True))
    return conditions


class Review(NamedTuple):
    """What curators say of an entry."""

    status: FeedbackStatus = PENDING
    tags: tuple[str, ...] = ()
    notes: str | None = None

    @classmethod
    def of(cls, row: Mapping[Any, Any], tags: str) -> Self:
        """From a row, whose tags are in the column `tags`."""
        return cls(row["status"] or PENDING, tuple(json.loads(row[tags] or "[]")), row["notes"])

    def change(self, order: FeedbackReview) -> "Review":
        tags = self.tags if order.tags is None else order.tags
        notes = self.notes if order.notes is None else order.notes.strip() or None
        all_tags = tuple(dict.fromkeys([*tags, *order.add_tags]))
        return Review(order.status or self.status, all_tags, notes)


class FeedbackReviews(Repository):
    """Reviews, their undo and their counts."""

    def find_unknown(self, ids: Iterable[int]) -> set[int]:
        """Which of these are ids of no entry."""
        known = self._database.fetch_among(
            select(feedback.c.feedback_id), feedback.c.feedback_id, ids
        )
        return set(ids) - {row.feedback_id for row in known}

    def count_by_status(self) -> dict[str, int]:
        """Number of entries by status; a status without any is missing."""
        query = select(_STATUS, func.count()).select_from(REVIEWED).group_by(_STATUS)
        return {row[0]: row[1] for row in self._database.fetch_all(query)}

    def count(self, only: FeedbackSelection) -> int:
        """Number of entries of a selection."""
        query = select(func.count()).select_from(REVIEWED).where(*selection_of(only))
        return self._database.fetch_scalar(query) or 0

    def list_tags(self) -> list[str]:
        """The curators' tags, by name."""
        tags = self._database.fetch_scalars(select(feedback_reviews.c.tags).distinct())
        return sorted({tag for text in tags for tag in json.loads(text)})

    def review(self, order: FeedbackReview, *, actor: str) -> ReviewedFeedback:
        """Change the status, tags or notes of entries, all or none; those that change get one
        review id and an audit link each. Ids of no entry are ignored.

        Raises ReviewConflict if the filter matches another number of entries than expected.
        """
        with audited_transaction(self._database) as (connection, ledger):
            columns = (feedback.c.feedback_id, *REVIEW_COLUMNS)
            chosen = select(*columns).select_from(REVIEWED).order_by(feedback.c.feedback_id)
            if order.filter is None:
                chosen = chosen.where(feedback.c.feedback_id.in_(set(order.feedback_ids)))
            else:
                chosen = chosen.where(*selection_of(order.filter))
            rows = connection.execute(chosen).mappings().all()
            if order.filter is not None and len(rows) != order.n_expected:
                raise ReviewConflict(
                    f"The filter matches {len(rows):,} entries now, not {order.n_expected:,}. "
                    "Nothing was changed. Look at the list again and repeat it."
                )
            reviews = {}
            for row in rows:
                old = Review.of(row, "curator_tags")
                new = old.change(order)
                if new != old:
                    reviews[row["feedback_id"]] = new
            action = f"review.{order.status or 'edit'}"
            review_id = self._write(connection, ledger, reviews, actor, action)
        return ReviewedFeedback(review_id=review_id, n_matched=len(rows), n_changed=len(reviews))

    def undo(self, review_id: int, *, actor: str) -> ReviewedFeedback:
        """Give the entries of a review their status, tags and notes from before it, but for those
        that were reviewed again since.

        Raises NotFound for an unknown review, ReviewConflict if it left no entry to restore.
        """
        column = feedback_reviews.c
        mine = select(column.feedback_id).where(column.review_id == review_id)
        with audited_transaction(self._database) as (connection, ledger):
            ids = list(connection.execute(mine.order_by(column.feedback_id)).scalars())
            if not ids:
                raise NotFound(f"There is no review {review_id} of feedback.")
            unchanged = set(connection.execute(mine.where(_IS_NEWEST)).scalars())
            if not unchanged:
                raise ReviewConflict(
                    f"Review {review_id} was undone, or all of its entries were reviewed again "
                    f"since: {', '.join(map(str, ids[:10]))}{', …' if len(ids) > 10 else ''}."
                )
            before = select(feedback_reviews).where(
                column.feedback_id.in_(mine), column.review_id < review_id
            )
            former = {
                row["feedback_id"]: Review.of(row, "tags")  # the last one of each stays
                for row in connection.execute(before.order_by(column.review_id)).mappings()
            }
            reviews = {n: former.get(n, Review()) for n in ids if n in unchanged}
            undo_id = self._write(connection, ledger, reviews, actor, "review.undo")
        left = tuple(n for n in ids if n not in unchanged)
        return ReviewedFeedback(
            review_id=undo_id, n_matched=len(ids), n_changed=len(reviews), left=left
        )

    def _write(
        self,
        connection: Connection,
        ledger: Ledger,
        reviews: Mapping[int, Review],
        actor: str,
        action: str,
    ) -> int | None:
        """The id of the new review; None without entries."""
        if not reviews:
            return None
        review_id = self._database.next_number(connection, feedback_reviews.c.review_id)
        now = self._database.clock.now().astimezone(UTC)
        rows = [
            {
                "feedback_id": feedback_id,
                "review_id": review_id,
                "status": new.status,
                "tags": _write_tags(new.tags),
                "notes": new.notes,
                "reviewed_by": actor,
                "reviewed_at": now,
            }
            for feedback_id, new in reviews.items()
        ]
        self._database.insert(connection, feedback_reviews, rows)
        for row in rows:
            ledger.append(
                actor=actor,
                action=action,
                object_id=f"{row['feedback_id']} review {review_id}",
                digest=row_digest(feedback_reviews, row),
                at=now,
            )
        for ids in batches(reviews, MAX_PARAMETERS):
            _flag_comparisons(connection, ledger, ids, actor)
        return review_id


def _flag_comparisons(
    connection: Connection, ledger: Ledger, feedback_ids: list[int], actor: str
) -> None:
    """Flag the comparisons of these corrections while all entries of one are rejected."""
    mine = select(feedback.c.comparison_id).where(
        feedback.c.feedback_id.in_(feedback_ids), feedback.c.comparison_id.is_not(None)
    )
    all_rejected = func.min(case((_STATUS == "rejected", 1), else_=0))
    by_comparison = (
        select(feedback.c.comparison_id)
        .select_from(REVIEWED)
        .where(feedback.c.comparison_id.in_(mine))
        .group_by(feedback.c.comparison_id)
    )
    for flag, old, n in ((REJECTED_FLAG, None, 1), (None, REJECTED_FLAG, 0)):
        these = by_comparison.having(all_rejected == n)
        changing = select(comparisons.c.comparison_id).where(
            comparisons.c.comparison_id.in_(these), comparisons.c.flag.is_not_distinct_from(old)
        )
        ids = list(connection.execute(changing.order_by(comparisons.c.comparison_id)).scalars())
        if ids:
            change = comparisons.update().where(comparisons.c.comparison_id.in_(ids))
            connection.execute(change.values(flag=flag))
            ledger.append(
                actor=actor,
                action="comparisons.flag",
                object_id=f"{len(ids)} comparisons: {flag or 'no flag'}",
                digest=content_hash([ids, flag]),
            )


def _write_tags(tags: Iterable[str]) -> str:
    return json.dumps(list(tags), ensure_ascii=False)
