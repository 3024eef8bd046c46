"""Which split a comparison belongs to: the imported one, else that of its group, else its
prompt's.
"""

from rlhf_pipeline.feedback.votes.splits import split_of, splits_of
from tests.unit.feedback.votes.simulated import simulate


def test_comparisons_of_a_split_group_share_a_split():
    comparisons = simulate(40).comparisons
    assert splits_of(comparisons).nunique() == 3
    grouped = comparisons.assign(split_group="one debate")
    assert set(splits_of(grouped)) == {split_of("one debate")}


def test_imported_split_takes_precedence():
    comparisons = simulate(40).comparisons.assign(split_group="one debate", split="test")
    assert set(splits_of(comparisons)) == {"test"}
