import pytest

from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.improve.retraining.curriculum import order_easy_to_hard, take_exactly
from tests.unit.improve.retraining.test_selection import BY_PEOPLE, pairs, scores, select_pairs

ROWS = select_pairs(pairs(4), scores([0.9, 0.55, 0.2, 0.7]), None, BY_PEOPLE)


def test_rows_the_reward_model_is_sure_of_come_first():
    assert order_easy_to_hard(ROWS)["comparison_id"].tolist() == ["c0", "c3", "c1", "c2"]
    assert order_easy_to_hard(ROWS)["difficulty"].tolist() == pytest.approx([0.2, 0.6, 0.9, 1.0])


def test_curriculum_has_exactly_n_rows_or_fails():
    assert len(take_exactly(ROWS, 3)) == 3
    with pytest.raises(NotEnoughVotes, match="has 4 rows, not 5"):
        take_exactly(ROWS, 5)
