"""Votes as people look at them: lists, one annotator's own, counts. Knows what was cast; casts
nothing and reads no log.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal, select

from rlhf_pipeline.records import AnnotatorKind, Choice, Record, Vote, VoteDetails
from rlhf_pipeline.store.casting import vote_of
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.counting import LATEST, is_standing
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, votes
from rlhf_pipeline.store.visibility import is_visible_vote, judged_ids


class VoteTally(Record):
    """Votes of one annotator on one day with one choice; of imported votes without a time, `day`
    and `last_voted_at` are missing.
    """

    annotator_id: str
    annotator_kind: AnnotatorKind
    day: date | None
    choice: Choice
    n: int
    last_voted_at: datetime | None


class Judgement(Record):
    """One of an annotator's judgements as it stands: not superseded, no skip; `gold` is the
    comparison's known answer.
    """

    comparison_id: str
    choice: Choice
    pass_no: int
    stated_confidence: float | None
    duration_s: float | None
    day: date
    gold: str | None


class VoteLists:
    """The half of `Votes` that web and command line look through."""

    def __init__(self, database: Database):
        self._database = database

    def with_ids(self, vote_ids: Sequence[str]) -> dict[str, Vote]:
        """Votes with these ids, by id; unknown ids are left out."""
        found: dict[str, Vote] = {}
        with self._database.read_transaction() as connection:
            for ids in batches(sorted(set(vote_ids)), MAX_ROWS):
                wanted = select(votes).where(
                    self._database.in_project(votes), votes.c.vote_id.in_(ids)
                )
                found |= {
                    row["vote_id"]: vote_of(dict(row))
                    for row in connection.execute(wanted).mappings()
                }
        return found

    def details_of(self, vote_ids: Sequence[str]) -> dict[str, VoteDetails]:
        """vote_id -> what was said beside the choice, of those that said anything."""
        found: dict[str, VoteDetails] = {}
        with self._database.read_transaction() as connection:
            for ids in batches(sorted(set(vote_ids)), MAX_ROWS):
                said = select(votes.c.vote_id, votes.c.details).where(
                    self._database.in_project(votes), votes.c.vote_id.in_(ids)
                )
                rows = connection.execute(said.where(votes.c.details.is_not(None)))
                found |= {row.vote_id: VoteDetails.from_json(row.details) for row in rows}
        return found

    def list_judgements(self, annotator_id: str, *, limit: int = 20_000) -> list[Judgement]:
        """One annotator's, newest first."""
        columns = [
            comparisons.c.gold if name == "gold" else votes.c[name]
            for name in Judgement.model_fields
        ]
        wanted = (
            select(*columns)
            .join(comparisons, is_on_comparison())
            .where(
                self._database.in_project(votes),
                votes.c.annotator_id == annotator_id,
                votes.c.choice != Choice.SKIP.value,
                is_standing(self._database, votes),
            )
            .order_by(votes.c.seq.desc())
            .limit(limit)
        )
        with self._database.read_transaction() as connection:
            return [
                Judgement.model_validate(dict(row)) for row in connection.execute(wanted).mappings()
            ]

    def list_votes_with_status(
        self, annotator_id: str, *, before_seq: int | None = None, limit: int = 50
    ) -> list[tuple[Vote, bool]]:
        """One annotator's votes with all that was said, newest first, and whether each was
        superseded.
        """
        upper = LATEST if before_seq is None else before_seq
        mine = (
            self._database.in_project(votes),
            votes.c.annotator_id == annotator_id,
            votes.c.seq < upper,
        )
        wanted = (
            select(votes, (~is_standing(self._database, votes)).label("is_superseded"))
            .where(*mine)
            .order_by(votes.c.seq.desc())
            .limit(limit)
        )
        with self._database.read_transaction() as connection:
            return [
                (vote_of(dict(row)), row["is_superseded"])
                for row in connection.execute(wanted).mappings()
            ]

    def paces(
        self, after_seq: int, *, up_to_seq: int, seen_by: str | None = None
    ) -> list[tuple[str, float | None]]:
        """(annotator, seconds) of the votes between two seqs that are no skips, in order; `seen_by`
        as `Votes.page`.
        """
        between = (
            votes.c.seq > after_seq,
            votes.c.seq <= up_to_seq,
            votes.c.choice != Choice.SKIP.value,
            *self._visibility_conditions(seen_by),
        )
        wanted = (
            select(votes.c.annotator_id, votes.c.duration_s)
            .where(self._database.in_project(votes), *between)
            .order_by(votes.c.seq)
        )
        with self._database.read_transaction() as connection:
            return [(row[0], row[1]) for row in connection.execute(wanted)]

    def judged_comparisons(
        self, *, before_seq: int | None = None, seen_by: str | None = None, limit: int = 50
    ) -> list[tuple[str, int]]:
        """(comparison, seq of its newest vote), the newest first: comparisons that somebody judged,
        each once.

        `seen_by`: a user who may vote; then only comparisons they have judged.
        """
        judged = (
            ()
            if seen_by is None
            else (votes.c.comparison_id.in_(judged_ids(self._database, seen_by)),)
        )
        upper = LATEST if before_seq is None else before_seq
        newer = votes.alias("newer")
        has_newer = select(literal(1)).where(
            self._database.in_project(newer),
            newer.c.comparison_id == votes.c.comparison_id,
            newer.c.seq > votes.c.seq,
            newer.c.choice != Choice.SKIP.value,
        )
        wanted = (
            select(votes.c.comparison_id, votes.c.seq)
            .where(
                self._database.in_project(votes),
                votes.c.seq < upper,
                votes.c.choice != Choice.SKIP.value,
                ~has_newer.exists(),
                *judged,
            )
            .order_by(votes.c.seq.desc())
            .limit(limit)
        )
        with self._database.read_transaction() as connection:
            return [(row[0], row[1]) for row in connection.execute(wanted)]

    def tallies(
        self, after_seq: int = 0, *, up_to_seq: int | None = None, seen_by: str | None = None
    ) -> list[VoteTally]:
        """Votes cast after a seq, counted by annotator, kind, day and choice; add the tallies of
        later seqs instead of counting again.

        `seen_by` as `Votes.page`.
        """
        return self._count_tallies(votes, votes, after_seq, up_to_seq, seen_by)

    def superseded_tallies(
        self, after_seq: int = 0, *, up_to_seq: int | None = None, seen_by: str | None = None
    ) -> list[VoteTally]:
        """`tallies` of the votes that were superseded by votes cast after a seq."""
        return self._count_tallies(votes.alias("replaced"), votes, after_seq, up_to_seq, seen_by)

    def _count_tallies(
        self, counted: Any, cast: Any, after_seq: int, up_to_seq: int | None, seen_by: str | None
    ) -> list[VoteTally]:
        limit = LATEST if up_to_seq is None else up_to_seq
        day = case((counted.c.voted_at.is_not(None), counted.c.day)).label("day")
        by = *(counted.c[name] for name in ("annotator_id", "annotator_kind", "choice")), day
        # A vote that supersedes another is on the same comparison, so both are visible or neither
        # is.
        among = (
            self._database.in_project(cast),
            cast.c.seq > after_seq,
            cast.c.seq <= limit,
            *self._visibility_conditions(seen_by),
        )
        wanted = (
            select(
                *by, func.count().label("n"), func.max(counted.c.voted_at).label("last_voted_at")
            )
            .where(*among)
            .group_by(*by)
        )
        if counted is not cast:
            wanted = wanted.where(
                cast.c.supersedes == counted.c.vote_id, self._database.in_project(counted)
            )
        with self._database.read_transaction() as connection:
            return [
                VoteTally.model_validate(dict(row)) for row in connection.execute(wanted).mappings()
            ]

    def _visibility_conditions(self, seen_by: str | None) -> tuple[ColumnElement[bool], ...]:
        return () if seen_by is None else (is_visible_vote(self._database, seen_by),)


def is_on_comparison() -> ColumnElement[bool]:
    """That a vote is on a comparison."""
    return and_(
        comparisons.c.organization_id == votes.c.organization_id,
        comparisons.c.project_id == votes.c.project_id,
        comparisons.c.comparison_id == votes.c.comparison_id,
    )
