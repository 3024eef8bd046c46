import numpy as np
import pytest

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.learn.reward_model.comparison_groups import group_by_length, group_comparisons


def all_against_all(n: int, offset: int = 0) -> list[tuple[int, int]]:
    return [(offset + i, offset + j) for i in range(n) for j in range(i)]


def groups_of(pairs, **params):
    usual = {"texts_per_batch": 6, "texts_per_prompt": 6, "seed": 0}
    first, second = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    return group_comparisons(first, second, **(usual | params))


def test_every_pair_is_in_a_group_and_no_group_is_too_large():
    groups = groups_of(all_against_all(20))
    assert set(np.concatenate([group.pairs for group in groups]).tolist()) == set(range(190))
    assert max(len(group.texts) for group in groups) <= 6
    # 15 pairs a group at most: 13 are the least, and a greedy cover needs not twice as many.
    assert len(groups) < 26


def test_a_group_holds_all_labelled_pairs_among_its_texts():
    pairs = all_against_all(9)
    for group in groups_of(pairs):
        inside = {row for row, (a, b) in enumerate(pairs) if a in group.texts and b in group.texts}
        assert set(group.pairs.tolist()) == inside
        assert [
            (int(group.texts[a]), int(group.texts[b]))
            for a, b in zip(group.first, group.second, strict=True)
        ] == [pairs[row] for row in group.pairs]


def test_a_group_takes_several_prompts():
    pairs = all_against_all(8) + all_against_all(8, offset=8)
    groups = groups_of(pairs, texts_per_prompt=3)
    assert max(len(set(group.texts[group.texts < 8])) for group in groups) <= 6
    assert any((group.texts < 8).any() and (group.texts >= 8).any() for group in groups)
    unshared = groups_of([(2 * i, 2 * i + 1) for i in range(9)])
    assert [len(group.pairs) for group in unshared] == [3, 3, 3]


def test_repeated_pair_counts_twice_and_self_pair_never():
    group = groups_of([(0, 1), (1, 0), (2, 2), (0, 2)])[0]
    assert group.pairs.tolist() == [0, 1, 3]


def test_completions_compared_with_themselves_are_not_data():
    with pytest.raises(
        NotEnoughData, match="Each of 2 pairs to train on sets a completion beside itself"
    ):
        groups_of([(0, 0), (1, 1)])


@pytest.mark.parametrize("seed", range(20))
def test_grouping_has_the_least_cost_of_all_cuts(seed):
    lengths = np.random.default_rng(seed).integers(1, 200, 7)
    groups = group_by_length(lengths, overhead=40)
    assert sorted(np.concatenate(groups).tolist()) == list(range(7))

    def cost(groups):
        return sum(len(group) * lengths[group].max() + 40 for group in groups)

    order = np.argsort(lengths, kind="stable")
    every = [
        np.split(order, [cut for cut in range(1, 7) if mask >> (cut - 1) & 1])
        for mask in range(2**6)
    ]
    assert cost(groups) == min(cost(groups) for groups in every)
