"""Practice rounds of new annotators, on comparisons with known answers.

What an annotator chooses in one is stored nowhere. The comparison is, because they know its answer
from then on: it is never dealt to them as a card.
"""

from sqlalchemy import Connection, and_, func, literal, select

from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import AnnotationRules, Record
from rlhf_pipeline.store.card_queue import AnnotatorQueue
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import comparisons, practised_comparisons, votes

MOST_CARDS = 4
# known answers per practice card: the others are left to measure the annotator
ANSWERS_PER_CARD = 4


class PracticeCard(Record):
    """A comparison to practise on, and whether completion b stands left."""

    comparison_id: str
    is_swapped: bool


class PracticeRounds:
    """A round has up to MOST_CARDS cards, one of four comparisons with a known answer."""

    def __init__(self, database: Database):
        self._database = database

    def has_voted(self, annotator_id: str) -> bool:
        with self._database.read_transaction() as connection:
            return self._has_voted(connection, annotator_id)

    def deal(self, annotator_id: str, rules: AnnotationRules) -> list[PracticeCard]:
        """The cards that are left of the annotator's round; none once they have voted."""
        with self._database.read_transaction() as connection:
            return self._deal(connection, annotator_id, rules)

    def reveal(
        self, annotator_id: str, comparison_id: str, rules: AnnotationRules
    ) -> tuple[PracticeCard, str]:
        """A card of the annotator's round and its known answer, a and b as in the comparison.

        Raises NotFound for any other comparison, whose answer stays hidden.
        """
        known = select(comparisons.c.gold).where(
            self._database.in_project(comparisons), comparisons.c.comparison_id == comparison_id
        )
        with self._database.write_transaction() as connection:
            if not self._count(connection, annotator_id, comparison_id):
                dealt = self._deal(connection, annotator_id, rules)
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
            answer = str(connection.execute(known).scalar_one())
        return PracticeCard(comparison_id=comparison_id, is_swapped=is_swapped), answer

    def _deal(
        self, connection: Connection, annotator_id: str, rules: AnnotationRules
    ) -> list[PracticeCard]:
        if self._has_voted(connection, annotator_id):
            return []
        queue = self._queue(connection, annotator_id, rules)
        n_before = self._count(connection, annotator_id)
        unmet = list(queue.gold_slots)
        n = min(MOST_CARDS, (len(unmet) + n_before) // ANSWERS_PER_CARD) - n_before
        return [
            PracticeCard(comparison_id=each, is_swapped=queue.is_swapped(each))
            for each in unmet[: max(0, n)]
        ]

    def _has_voted(self, connection: Connection, annotator_id: str) -> bool:
        own = select(literal(1)).where(
            self._database.in_project(votes), votes.c.annotator_id == annotator_id
        )
        return connection.execute(own.limit(1)).scalar() is not None

    def _count(
        self, connection: Connection, annotator_id: str, comparison_id: str | None = None
    ) -> int:
        own = and_(
            self._database.in_project(practised_comparisons),
            practised_comparisons.c.annotator_id == annotator_id,
        )
        if comparison_id is not None:
            own = and_(own, practised_comparisons.c.comparison_id == comparison_id)
        return int(connection.execute(select(func.count()).where(own)).scalar_one())

    def _queue(
        self, connection: Connection, annotator_id: str, rules: AnnotationRules
    ) -> AnnotatorQueue:
        now = self._database.clock.now()
        return AnnotatorQueue(self._database, connection, annotator_id, rules, now)
