"""Feedback from where a model is used: thumbs, ratings, corrections, words; linked by session. Append-only.

A correction is a judgement too: it is published as a comparison of the completion with the corrected text, and its author's vote for
that text is cast, so that the correction becomes `chosen` in training like any other vote. Nobody judges their own text again.
"""

import json
from collections.abc import Sequence
from datetime import UTC

from sqlalchemy import func, select

from rlhf_pipeline.records import AnnotatorKind, Choice, Feedback, NewFeedback, NewVote, content_hash, content_id
from rlhf_pipeline.store.audit import FEEDBACK_ADD, acting, row_digest
from rlhf_pipeline.store.casting import cast_votes, seal
from rlhf_pipeline.store.comparisons import pair_key
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import comparisons, feedback

CORRECTION = "correction"  # `source` of such comparisons, and model version of the corrected text
STRENGTH = 4  # somebody took the trouble to write it


class FeedbackEntries:
    """Read newest first, by session, kind or author."""

    def __init__(self, database: Database):
        self._database = database

    def add(self, new: NewFeedback, *, created_by: str, annotator_kind: AnnotatorKind = AnnotatorKind.HUMAN) -> Feedback:
        """Record one, and the comparison and vote that a correction becomes, in one transaction.

        Its words are `new.author`'s, a pseudonym already, or else those of `created_by`; `annotator_kind` is whose words they are.
        """
        said_by = new.author or created_by
        now = self._database.clock.now().astimezone(UTC)
        with acting(self._database) as (connection, ledger):
            last = connection.execute(select(func.max(feedback.c.feedback_id)).where(self._database.mine(feedback))).scalar() or 0
            comparison_id = vote_id = None
            if new.kind == CORRECTION:
                comparison = self._comparison(new, said_by)
                comparison_id = comparison["comparison_id"]
                known = select(comparisons.c.comparison_id).where(
                    self._database.mine(comparisons), comparisons.c.comparison_id == comparison_id
                )
                if connection.execute(known).scalar() is None:
                    self._database.insert(connection, comparisons, [comparison])
                    ledger.append(
                        actor=created_by, action="comparisons.publish", object_id="1 comparisons", digest=content_hash([comparison])
                    )
                vote = NewVote(
                    comparison_id=comparison_id,
                    annotator_id=said_by,
                    annotator_kind=annotator_kind,
                    choice=Choice.B,
                    strength=STRENGTH,
                    reason=new.text,
                    voted_at=new.given_at or now,
                    origin="api",
                    idempotency_key=f"feedback/{last + 1}",
                )
                vote_id = cast_votes(connection, ledger, self._database, [seal(vote)])[0]["vote_id"]
            row = {
                "feedback_id": last + 1,
                "kind": new.kind,
                "session_id": new.session_id,
                "created_by": created_by,
                "created_at": now,
                "record": new.model_dump_json(exclude_none=True),
                "comparison_id": comparison_id,
                "vote_id": vote_id,
            }
            self._database.insert(connection, feedback, [row])
            ledger.append(actor=created_by, action=FEEDBACK_ADD, object_id=str(last + 1), digest=row_digest(feedback, row))
        return Feedback(
            **new.model_dump(), feedback_id=last + 1, created_at=now, created_by=created_by, comparison_id=comparison_id, vote_id=vote_id
        )

    def page(
        self,
        *,
        before_id: int | None = None,
        kind: str | None = None,
        session_id: str | None = None,
        created_by: str | None = None,
        limit: int = 50,
    ) -> list[Feedback]:
        """Newest first, at most `limit`; the next page is `before_id` the last one's id."""
        conditions = [self._database.mine(feedback)]
        for column, value in ((feedback.c.kind, kind), (feedback.c.session_id, session_id), (feedback.c.created_by, created_by)):
            if value is not None:
                conditions.append(column == value)
        if before_id is not None:
            conditions.append(feedback.c.feedback_id < before_id)
        wanted = select(feedback).where(*conditions).order_by(feedback.c.feedback_id.desc()).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(wanted).mappings().all()
        return [
            Feedback(
                **json.loads(row["record"]),
                **{name: row[name] for name in ("feedback_id", "created_at", "created_by", "comparison_id", "vote_id")},
            )
            for row in rows
        ]

    def counts(self) -> dict[str, int]:
        """By kind."""
        wanted = select(feedback.c.kind, func.count()).where(self._database.mine(feedback)).group_by(feedback.c.kind)
        with self._database.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(wanted)}

    def _comparison(self, new: NewFeedback, said_by: str) -> dict[str, object]:
        prompt, completion, correction = str(new.prompt), str(new.completion), str(new.correction)
        prompt_id = content_id("prompt", prompt)
        a, b = new.completion_id or content_id("completion", prompt, completion), content_id("completion", prompt, correction)
        now = self._database.clock.now()
        return {
            "comparison_id": content_id("comparison", CORRECTION, prompt, completion, correction, said_by),
            "day": (new.given_at or now).astimezone(UTC).date().isoformat(),  # in UTC, as its vote's
            "prompt_id": prompt_id,
            "prompt": prompt,
            "completion_a_id": a,
            "completion_b_id": b,
            "completion_a": completion,
            "completion_b": correction,
            "model_version_a": "unknown",
            "model_version_b": CORRECTION,
            "category": CORRECTION,
            "repeat_of": None,
            "position": 0,
            "seed": 0,
            "published_at": now,
            "source": CORRECTION,
            "pair_key": pair_key(prompt, completion, correction),
            "written_by": said_by,
            **_unsaid(),
        }


def _unsaid(names: Sequence[str] = ("source_pair_id", "split_group", "split", "gold", "flag")) -> dict[str, None]:
    return dict.fromkeys(names)
