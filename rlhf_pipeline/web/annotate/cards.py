"""Deals cards: which text stands left and which right. Caches their texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import AnnotationRules, Card, VisibleRules
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.comparisons import Texts
from rlhf_pipeline.web.comparisons.identity import names_its_maker
from rlhf_pipeline.web.memory_cache import ExpiringCache

MAX_CACHED_CARDS = 20_000
MAX_CACHED_TEXTS = 2_000


@dataclass(frozen=True)
class CardContent:
    """A card with the texts that it shows."""

    card: Card
    texts: Texts
    names_maker: bool

    @property
    def left(self) -> str:
        return self.texts.completion_b if self.card.is_swapped else self.texts.completion_a

    @property
    def right(self) -> str:
        return self.texts.completion_a if self.card.is_swapped else self.texts.completion_b


def swap_side(side: str, is_swapped: bool | None) -> str:
    """Map a side of a card to the side of its comparison, or back: a is left, b is right."""
    return {"a": "b", "b": "a"}.get(side, side) if is_swapped else side


def select_visible(rules: AnnotationRules) -> VisibleRules:
    return VisibleRules(**rules.model_dump(include=set(VisibleRules.model_fields)))


class CardDealer:
    """Deals cards from the store and remembers them, so that a vote needs no second read."""

    def __init__(self, store: Store):
        self._store = store
        self._cards = ExpiringCache[str, Card](MAX_CACHED_CARDS)
        self._texts = ExpiringCache[str, tuple[Texts, bool]](MAX_CACHED_TEXTS)

    def deal(
        self, annotator_id: str, n: int, rules: AnnotationRules, *, ratings: bool = False
    ) -> list[CardContent]:
        """Cards to vote on, and with `ratings` to rate."""
        if not ratings:
            rules = rules.model_copy(update={"rating_share": 0.0})
        dealt = self._store.cards.deal(annotator_id, n, rules)
        self._load_texts([card.comparison_id for card in dealt])
        return [self._add_texts(card) for card in dealt]

    def get(self, card_id: str, annotator_id: str) -> CardContent:
        """Raises NotFound, in the same words whether the card does not exist or belongs to another
        user.
        """
        card = self._cards.get(card_id) or self._store.cards.get(card_id)
        if card.annotator_id != annotator_id:
            raise NotFound(f"There is no card {card_id!r}. Lease one first.")
        return self._add_texts(card)

    def release(self, card_id: str, annotator_id: str) -> None:
        self._store.cards.release(card_id, annotator_id)
        self._cards.forget(card_id)

    def _add_texts(self, card: Card) -> CardContent:
        self._cards.put(card.card_id, card)
        content = self._texts.get(card.comparison_id)
        if content is None:
            self._load_texts([card.comparison_id])
            content = self._texts.get(card.comparison_id)
        if content is None:
            raise NotFound(f"The comparison of card {card.card_id!r} is gone. Lease another card.")
        return CardContent(card, *content)

    def _load_texts(self, comparison_ids: Sequence[str]) -> None:
        missing = [c for c in comparison_ids if self._texts.get(c) is None]
        if missing:
            for comparison_id, texts in self._store.comparisons.texts(missing).items():
                self._texts.put(comparison_id, (texts, names_its_maker(texts)))
