"""Practice rounds: what is dealt, what is revealed, and that nothing of it counts."""

import pytest

from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import AnnotationRules
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON

RULES = AnnotationRules(gold_share=0.5, repeat_share=0, seed=3)


@pytest.fixture
def publish(store: Store, make_comparisons):
    """Comparisons of two known answers by turns; offered ones are asked of anybody, too."""

    def publish_known(n: int, *, prefix: str = "g", offered: bool = False) -> list[str]:
        frame = make_comparisons(n, prefix=prefix)
        frame["gold"] = ["a", "b"] * (n // 2) + ["a"] * (n % 2)
        store.comparisons.publish(frame, published_at=NOON)
        ids = list(frame["comparison_id"])
        if offered:
            store.assignments.offer(ids, overlap=1)
        return ids

    return publish_known


def ids_of(store: Store, who: str = "ann") -> list[str]:
    return [card.comparison_id for card in store.practice.deal(who, RULES)]


@pytest.mark.parametrize(("n_known", "n_cards"), [(0, 0), (3, 0), (4, 1), (15, 3), (40, 4)])
def test_a_round_takes_a_quarter_of_the_known_answers_up_to_four(store, publish, n_known, n_cards):
    publish(n_known) if n_known else None
    assert len(ids_of(store)) == n_cards


def test_a_round_goes_on_where_it_was_left_and_is_made_once(store, publish):
    publish(16)
    planned = ids_of(store)
    for n, comparison_id in enumerate(planned):
        assert ids_of(store) == planned[n:]
        card, answer = store.practice.reveal("ann", comparison_id, RULES)
        assert answer == ("a" if int(comparison_id[1:]) % 2 == 0 else "b")
        assert store.practice.reveal("ann", comparison_id, RULES) == (card, answer)
    assert ids_of(store) == []
    assert len(ids_of(store, "bob")) == 4


def test_other_known_answers_stay_hidden(store, publish):
    ids = publish(16)
    planned = ids_of(store)
    hidden = next(each for each in ids if each not in planned)
    for comparison_id in (hidden, "nope"):
        with pytest.raises(NotFound, match="not in your practice round"):
            store.practice.reveal("ann", comparison_id, RULES)


def test_what_was_practised_on_is_never_dealt_to_its_annotator(store, publish):
    publish(16, offered=True)
    practised = ids_of(store)
    for comparison_id in practised:
        store.practice.reveal("ann", comparison_id, RULES)
    assert store.assignments.remaining_for("ann", RULES).n == 12
    dealt = {card.comparison_id for card in store.assignments.deal("ann", 20, RULES)}
    assert len(dealt) == 12
    assert not dealt & set(practised)
    assert store.assignments.ask("ann", practised, actor="test") == 0
    others = {card.comparison_id for card in store.assignments.deal("bob", 20, RULES)}
    assert others >= set(practised)
