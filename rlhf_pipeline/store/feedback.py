"""Append-only feedback on completions: thumbs, ratings, corrections and texts, linked by session.

A correction is a judgement too: it is published as a comparison of the completion with the
corrected text, and its author's vote for that text is cast, so that the correction becomes `chosen`
in training like any other vote. Annotators never judge their own text again.
"""

import json
import secrets
from collections.abc import Mapping
from datetime import UTC
from random import Random
from typing import Any, get_args

from sqlalchemy import Connection, and_, case, func, or_, select

from rlhf_pipeline.core.api_types.filters import (
    FeedbackFilter,
    FeedbackKind,
    FeedbackSelection,
)
from rlhf_pipeline.core.conversations import prompt_id
from rlhf_pipeline.core.curation import FeedbackQuery
from rlhf_pipeline.core.errors import IdempotencyConflict, InvalidVote
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Choice,
    Feedback,
    FeedbackStatus,
    NewFeedback,
    NewVote,
    content_hash,
    content_id,
)
from rlhf_pipeline.store.answers import AnswerLog
from rlhf_pipeline.store.audit import FEEDBACK_ADD, audited_transaction, row_digest
from rlhf_pipeline.store.casting import insert_votes
from rlhf_pipeline.store.comparisons import pair_key
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.feedback_reviews import (
    PENDING,
    REVIEW_COLUMNS,
    REVIEWED,
    selection_of,
)
from rlhf_pipeline.store.schema import comparisons, feedback, feedback_reviews
from rlhf_pipeline.store.votes import prepare_row

CORRECTION = "correction"  # `source` of such comparisons, and model version of the corrected text
STRENGTH = 4  # somebody took the trouble to write it
_SELECT = select(feedback, *REVIEW_COLUMNS).select_from(REVIEWED)


class FeedbackEntries(Repository):
    """Entries newest first, by session, kind or author."""

    def add(
        self,
        new: NewFeedback,
        *,
        created_by: str,
        annotator_kind: AnnotatorKind = AnnotatorKind.HUMAN,
        is_blind: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Feedback:
        """Record an entry, and the comparison and vote of a correction, in one transaction.

        Its author is `new.author`, already a pseudonym, or else `created_by`, of kind
        `annotator_kind`; the vote has that author's `is_blind`. The same entry of
        a user under the same key is recorded once. Raises IdempotencyConflict for another entry;
        NotFound for an unknown answer, InvalidVote for a correction of one without kept texts.
        """
        new = self._fill_in_answer(new)
        key = None if idempotency_key is None else f"{created_by}/{idempotency_key}"
        record = new.model_dump_json(exclude_none=True)
        said_by = new.author or created_by
        now = self._database.clock.now().astimezone(UTC)
        with audited_transaction(self._database) as (connection, ledger):
            if key is not None:
                same_key = select(feedback).where(feedback.c.idempotency_key == key)
                earlier = connection.execute(same_key).mappings().first()
                if earlier is not None:
                    if earlier["record"] != record:
                        raise IdempotencyConflict(
                            f"Idempotency key {idempotency_key!r} already belongs to feedback "
                            f"{earlier['feedback_id']}, which is different. Send a new key for new "
                            "feedback, or repeat the first unchanged."
                        )
                    return _feedback_of(earlier)
            number = self._database.next_number(connection, feedback.c.feedback_id)
            comparison_id = vote_id = None
            if new.kind == CORRECTION:
                comparison = self._find_earlier_correction(connection, new, said_by)
                if comparison is None:
                    comparison = self._build_comparison(connection, new, said_by)
                    self._database.insert(connection, comparisons, [comparison])
                    ledger.append(
                        actor=created_by,
                        action="comparisons.publish",
                        object_id="1 comparisons",
                        digest=content_hash([comparison]),
                    )
                comparison_id = comparison["comparison_id"]
                vote = NewVote(
                    comparison_id=comparison_id,
                    annotator_id=said_by,
                    annotator_kind=annotator_kind,
                    choice=Choice.A if comparison["completion_a"] == new.correction else Choice.B,
                    strength=STRENGTH,
                    reason=new.text,
                    voted_at=new.given_at or now,
                    origin="api",
                    is_blind=is_blind,
                    idempotency_key=f"feedback/{number}",
                )
                vote_id = insert_votes(connection, ledger, self._database, [prepare_row(vote)])[0][
                    "vote_id"
                ]
            row = {
                "feedback_id": number,
                "kind": new.kind,
                "session_id": new.session_id,
                "created_by": created_by,
                "created_at": now,
                "record": record,
                "comparison_id": comparison_id,
                "vote_id": vote_id,
                "idempotency_key": key,
            }
            self._database.insert(connection, feedback, [row])
            ledger.append(
                actor=created_by,
                action=FEEDBACK_ADD,
                object_id=str(number),
                digest=row_digest(feedback, row),
            )
        return _feedback_of(row)

    def _fill_in_answer(self, new: NewFeedback) -> NewFeedback:
        """The entry with the version, session and kept texts of the answer that it names."""
        if new.answer_id is None:
            return new
        answer = AnswerLog(self._database).get(new.answer_id)
        fields = {
            "prompt": new.prompt or answer.prompt,
            "completion": new.completion or answer.completion,
            "completion_id": new.answer_id,
            "session_id": new.session_id or answer.session_id,
            "model_version": answer.version,
        }
        if new.kind == CORRECTION:
            if not (fields["prompt"] and fields["completion"]):
                raise InvalidVote(
                    f"The texts of {new.answer_id} were not kept. Send prompt and completion with "
                    "the correction, or set serving.keep_texts."
                )
            if fields["completion"] == new.correction:
                raise InvalidVote("The corrected text equals the answer. Send another text.")
        return new.model_copy(update=fields)

    def with_key(self, created_by: str, idempotency_key: str) -> Feedback | None:
        """The entry of a user under a key."""
        same_key = select(feedback.c.feedback_id).where(
            feedback.c.idempotency_key == f"{created_by}/{idempotency_key}"
        )
        number = self._database.fetch_scalar(same_key)
        if number is None:
            return None
        return self.select(FeedbackQuery(feedback_ids=(number,)))[0]

    def page(
        self,
        only: FeedbackFilter = FeedbackFilter(),  # noqa: B008 (frozen)
        *,
        before_id: int | None = None,
    ) -> list[Feedback]:
        """Newest first, at most its `limit`; the next page is `before_id` the last one's id."""
        query = _SELECT.where(*selection_of(only))
        if before_id is not None:
            query = query.where(feedback.c.feedback_id < before_id)
        query = query.order_by(feedback.c.feedback_id.desc()).limit(only.limit)
        return [_feedback_of(row) for row in self._database.fetch_mappings(query)]

    def select(self, query: FeedbackQuery, status: FeedbackStatus | None = None) -> list[Feedback]:
        """All entries that a data set's query chooses, oldest first; with `status` those alone.
        Days are those of `created_at`.
        """
        column = feedback.c
        kinds = query.kinds or get_args(FeedbackKind)
        only = FeedbackSelection(
            session_id=query.session_id, since=query.since, until=query.until, status=status
        )
        conditions = [column.kind.in_(kinds), *selection_of(only)]
        if query.feedback_ids:
            conditions.append(column.feedback_id.in_(query.feedback_ids))
        chosen = _SELECT.where(*conditions).order_by(column.feedback_id)
        return [_feedback_of(row) for row in self._database.fetch_mappings(chosen)]

    def find_unapproved_comparisons(self) -> set[str]:
        """The comparisons of corrections none of which is approved."""
        is_approved = case((feedback_reviews.c.status == "approved", 1), else_=0)
        query = (
            select(feedback.c.comparison_id)
            .select_from(REVIEWED)
            .where(feedback.c.comparison_id.is_not(None))
            .group_by(feedback.c.comparison_id)
            .having(func.max(is_approved) == 0)
        )
        return set(self._database.fetch_scalars(query))

    def count_by_kind(self) -> dict[str, int]:
        """Number of entries by kind."""
        query = select(feedback.c.kind, func.count()).group_by(feedback.c.kind)
        return {row[0]: row[1] for row in self._database.fetch_all(query)}

    def _find_earlier_correction(
        self, connection: Connection, new: NewFeedback, said_by: str
    ) -> dict[str, Any] | None:
        """The comparison of the same correction by the same author."""
        a, b = comparisons.c.completion_a, comparisons.c.completion_b
        same = select(comparisons).where(
            comparisons.c.pair_key
            == pair_key(str(new.prompt), str(new.completion), str(new.correction)),
            comparisons.c.source == CORRECTION,
            comparisons.c.written_by == said_by,
            or_(
                and_(
                    comparisons.c.model_version_a == CORRECTION,
                    a == new.correction,
                    b == new.completion,
                ),
                and_(
                    comparisons.c.model_version_b == CORRECTION,
                    b == new.correction,
                    a == new.completion,
                ),
            ),
        )
        row = (
            connection.execute(same.order_by(comparisons.c.comparison_id).limit(1))
            .mappings()
            .first()
        )
        return None if row is None else dict(row)

    def _build_comparison(
        self, connection: Connection, new: NewFeedback, said_by: str
    ) -> dict[str, Any]:
        """Id, side and position are random: an annotator who recognises a correction, as by an id
        that follows from the texts, would know which text its author preferred.
        """
        prompt = str(new.prompt)
        completion = str(new.completion)
        correction = str(new.correction)
        now = self._database.clock.now()
        day = (
            (new.given_at or now).astimezone(UTC).date().isoformat()
        )  # in UTC, like the day of its vote
        seed = secrets.randbits(
            48
        )  # within the integers that files and JSON readers represent exactly
        draw = Random(seed)
        # From this day, or the newest day before it: in the morning a day may have no others yet.
        place = (
            comparisons.c.day.desc(),
            comparisons.c.position.desc(),
            comparisons.c.comparison_id.desc(),
        )
        last = (
            select(comparisons.c.position).where(comparisons.c.day <= day).order_by(*place).limit(1)
        )
        position = draw.randint(0, connection.execute(last).scalar() or 0)
        sides = [
            (
                new.completion_id or content_id("completion", prompt, completion),
                completion,
                new.model_version or "unknown",
            ),
            (content_id("completion", prompt, correction), correction, CORRECTION),
        ]
        draw.shuffle(sides)
        (a_id, a, made_a), (b_id, b, made_b) = sides
        return {
            "comparison_id": content_id(
                "comparison", CORRECTION, prompt, completion, correction, said_by, seed
            ),
            "day": day,
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "completion_a_id": a_id,
            "completion_b_id": b_id,
            "completion_a": a,
            "completion_b": b,
            "model_version_a": made_a,
            "model_version_b": made_b,
            "category": CORRECTION,
            "repeat_of": None,
            "position": position,
            "seed": seed,
            "published_at": now,
            "source": CORRECTION,
            "pair_key": pair_key(prompt, completion, correction),
            "written_by": said_by,
            **dict.fromkeys(("source_pair_id", "split_group", "split", "gold", "flag", "tags")),
        }


def _feedback_of(row: Mapping[Any, Any]) -> Feedback:
    columns = ("feedback_id", "created_at", "created_by", "comparison_id", "vote_id")
    review = {name: row[name] for name in ("notes", "reviewed_by", "reviewed_at") if name in row}
    return Feedback(
        **json.loads(row["record"]),
        **{name: row[name] for name in columns},
        **review,
        status=row.get("status") or PENDING,
        curator_tags=json.loads(row.get("curator_tags") or "[]"),
    )
