"""Practice rounds of new annotators, on comparisons with known answers.

What an annotator chooses in one is stored nowhere. The comparison is, because they know its answer
from then on: it is never dealt to them as a card.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, and_, func, literal, or_, select

from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import AnnotationRules, Record
from rlhf_pipeline.store.card_queue import AnnotatorQueue, is_unfinished
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import (
    assignments,
    comparisons,
    practised_comparisons,
    slots,
    votes,
)

MOST_CARDS = 4
# known answers per practice card: the others are left to measure the annotator
ANSWERS_PER_CARD = 4


class PracticeCard(Record):
    """A comparison to practise on, and whether completion b stands left."""

    comparison_id: str
    is_swapped: bool


class PracticeRounds:
    """A round has up to MOST_CARDS cards: one of four gold comparisons, then others whose right
    answer is known, which nobody is asked about at the moment.
    """

    def __init__(self, database: Database):
        self._database = database

    def has_voted(self, annotator_id: str) -> bool:
        with self._database.read_transaction() as connection:
            return self._has_voted(connection, annotator_id)

    def deal(
        self, annotator_id: str, rules: AnnotationRules, others: Collection[str] = ()
    ) -> list[PracticeCard]:
        """The cards that are left of the annotator's round; none once they have voted. `others`:
        comparisons that are not gold, whose right answer is known.
        """
        with self._database.read_transaction() as connection:
            return self._deal(connection, annotator_id, rules, others)

    def reveal(
        self,
        annotator_id: str,
        comparison_id: str,
        rules: AnnotationRules,
        others: Mapping[str, str] | None = None,
    ) -> tuple[PracticeCard, str]:
        """A card of the annotator's round and its known answer, a and b as in the comparison;
        `others` has those of comparisons that are not gold.

        Raises NotFound for any other comparison, whose answer stays hidden.
        """
        known = select(comparisons.c.gold).where(comparisons.c.comparison_id == comparison_id)
        with self._database.write_transaction() as connection:
            if not self._count(connection, annotator_id, comparison_id):
                dealt = self._deal(connection, annotator_id, rules, others or {})
                if comparison_id not in {card.comparison_id for card in dealt}:
                    raise NotFound(
                        f"Comparison {comparison_id!r} is not in your practice round. Read "
                        "/api/v1/practice for those that are."
                    )
                row = {
                    "annotator_id": annotator_id,
                    "comparison_id": comparison_id,
                    "practised_at": self._database.clock.now(),
                }
                self._database.insert(connection, practised_comparisons, [row])
            is_swapped = self._queue(connection, annotator_id, rules).is_swapped(comparison_id)
            answer = connection.execute(known).scalar_one() or (others or {}).get(comparison_id)
            if answer is None:  # practised on, and too old by now
                raise NotFound(f"The answer of comparison {comparison_id!r} is not known any more.")
        return PracticeCard(comparison_id=comparison_id, is_swapped=is_swapped), answer

    def _deal(
        self,
        connection: Connection,
        annotator_id: str,
        rules: AnnotationRules,
        others: Collection[str],
    ) -> list[PracticeCard]:
        if self._has_voted(connection, annotator_id):
            return []
        queue = self._queue(connection, annotator_id, rules)
        n_before = self._count(connection, annotator_id)
        unmet = list(queue.gold_slots)
        n = min(MOST_CARDS, (len(unmet) + n_before) // ANSWERS_PER_CARD) - n_before
        chosen = unmet[: max(0, n)]
        n_missing = MOST_CARDS - n_before - len(chosen)
        if n_missing > 0 and others:
            free = self._find_free(connection, annotator_id, others)
            chosen += sorted(free, key=queue.practice_place)[:n_missing]
        return [
            PracticeCard(comparison_id=each, is_swapped=queue.is_swapped(each)) for each in chosen
        ]

    def _find_free(
        self, connection: Connection, annotator_id: str, among: Collection[str]
    ) -> list[str]:
        """Comparisons that wait for no judgement, which practice would take from the annotator, and
        that the annotator has neither met nor written. Gold ones are left out.
        """
        met = (
            select(literal(1)).where(
                table.c.comparison_id == comparisons.c.comparison_id,
                condition,
            )
            for table, condition in (
                (slots, is_unfinished()),
                (assignments, assignments.c.annotator_id == annotator_id),
                (practised_comparisons, practised_comparisons.c.annotator_id == annotator_id),
            )
        )
        own = comparisons.c.written_by
        wanted = select(comparisons.c.comparison_id).where(
            comparisons.c.comparison_id.in_(sorted(among)),
            comparisons.c.gold.is_(None),
            comparisons.c.flag.is_(None),
            or_(own.is_(None), own != annotator_id),
            *(~one.exists() for one in met),
        )
        return list(connection.execute(wanted).scalars())

    def _has_voted(self, connection: Connection, annotator_id: str) -> bool:
        own = select(literal(1)).where(votes.c.annotator_id == annotator_id)
        return connection.execute(own.limit(1)).scalar() is not None

    def _count(
        self, connection: Connection, annotator_id: str, comparison_id: str | None = None
    ) -> int:
        own = practised_comparisons.c.annotator_id == annotator_id
        if comparison_id is not None:
            own = and_(own, practised_comparisons.c.comparison_id == comparison_id)
        return int(connection.execute(select(func.count()).where(own)).scalar_one())

    def _queue(
        self, connection: Connection, annotator_id: str, rules: AnnotationRules
    ) -> AnnotatorQueue:
        now = self._database.clock.now()
        return AnnotatorQueue(self._database, connection, annotator_id, rules, now)
