import numpy as np
import pytest

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.reward_model.trainers import TrainingData
from rlhf_pipeline.reward_model.trainers.batches import BatchPlan, group_by_length


def data_of(pairs: list[tuple[int, int]], n_texts: int) -> TrainingData:
    first, second = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    n = len(pairs)
    return TrainingData(
        [[1]] * n_texts,
        first,
        second,
        np.ones(n),
        np.ones(n),
        np.zeros(n, dtype=np.int64),
        0,
    )


def all_against_all(n: int, offset: int = 0) -> list[tuple[int, int]]:
    return [(offset + i, offset + j) for i in range(n) for j in range(i)]


def plan_of(pairs, n_texts, **given):
    usual = {
        "texts_per_batch": 6,
        "texts_per_prompt": 6,
        "batches_per_step": 1,
        "epochs": 1,
        "steps": None,
        "seed": 0,
    }
    return BatchPlan(data_of(pairs, n_texts), **(usual | given))


def test_an_epoch_sees_every_pair_and_no_batch_is_too_large():
    plan = plan_of(all_against_all(20), 20)
    batches = [batch for step in range(plan.n_steps) for batch in plan.batches_of_step(step)]
    assert set(np.concatenate([batch.pairs for batch in batches]).tolist()) == set(range(190))
    assert max(len(batch.texts) for batch in batches) <= 6
    # 15 pairs a batch at most: 13 batches are the least, and a greedy cover needs not twice as
    # many.
    assert len(batches) < 26


def test_a_batch_holds_all_labelled_pairs_among_its_texts():
    pairs = all_against_all(9)
    for batch in plan_of(pairs, 9).batches_of_step(0):
        inside = {row for row, (a, b) in enumerate(pairs) if a in batch.texts and b in batch.texts}
        assert set(batch.pairs.tolist()) == inside
        assert [
            (int(batch.texts[a]), int(batch.texts[b]))
            for a, b in zip(batch.first, batch.second, strict=True)
        ] == [pairs[row] for row in batch.pairs]


def test_a_pair_judged_twice_is_learnt_twice_and_a_self_pair_never():
    batch = plan_of([(0, 1), (1, 0), (2, 2), (0, 2)], 3).batches_of_step(0)[0]
    assert batch.pairs.tolist() == [0, 1, 3]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("steps", [None, 5])
def test_completions_compared_with_themselves_are_not_data(steps):
    with pytest.raises(
        NotEnoughData, match="Each of 2 pairs to train on sets a completion beside itself"
    ):
        plan_of([(0, 0), (1, 1)], 2, steps=steps)


def test_steps_go_on_into_further_epochs_that_differ():
    plan = plan_of(all_against_all(6), 6, steps=3)
    assert plan.n_steps == 3
    assert all(len(plan.batches_of_step(i)[0].pairs) == 15 for i in range(3))
    whole = plan_of(all_against_all(12), 12, epochs=2)
    shared = plan_of(all_against_all(12), 12, epochs=2, batches_per_step=100)
    assert shared.n_steps == 2  # an epoch's last step takes what is left
    assert sum(len(shared.batches_of_step(i)) for i in range(2)) == whole.n_steps


@pytest.mark.parametrize("seed", range(20))
def test_padding_and_passes_cost_least_of_all_cuts(seed):
    lengths = np.random.default_rng(seed).integers(1, 200, 7)
    found = group_by_length(lengths, overhead=40)
    assert sorted(np.concatenate(found).tolist()) == list(range(7))

    def cost(groups):
        return sum(len(group) * lengths[group].max() + 40 for group in groups)

    order = np.argsort(lengths, kind="stable")
    every = [
        np.split(order, [cut for cut in range(1, 7) if mask >> (cut - 1) & 1])
        for mask in range(2**6)
    ]
    assert cost(found) == min(cost(groups) for groups in every)
