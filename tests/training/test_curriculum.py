"""In which order trainers read their rows."""

import re
from itertools import pairwise

import pytest
import transformers

from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.simulation.testing.strategies import (
    PARAMS,
    VowelReward,
    build_pairs,
    build_policy,
)


class Ready(Exception):
    """Stands in for the training; carries the trainer."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("models") / "policy")


def read_batches(trainer):
    """The numbers in the prompts of each batch, which tell the rows apart."""
    for batch in trainer.get_train_dataloader():
        texts = (
            trainer.processing_class.batch_decode(batch["input_ids"])
            if "input_ids" in batch
            else [str(batch)]
        )
        yield {int(n) for text in texts for n in re.findall(r"sum of (\d+)", text)}


@pytest.mark.parametrize(
    ("strategy", "curriculum"),
    [("dpo", False), *((name, True) for name in ("dpo", "kto", "grpo", "ppo"))],
)
def test_curriculum_goes_from_easy_to_hard_in_every_epoch(
    tmp_path, policy, monkeypatch, strategy, curriculum
):
    def stop(trainer, **_):
        raise Ready(trainer)

    monkeypatch.setattr(transformers.Trainer, "train", stop)
    pairs = build_pairs(24, difficulty=[i / 24 for i in range(24)]).sample(frac=1, random_state=0)
    params = PARAMS.model_copy(update={"batch_size": 6, "curriculum": curriculum})
    with pytest.raises(Ready) as ready:
        train_candidate(strategy, policy, pairs, tmp_path, params, reward=VowelReward())
    for _ in range(2):
        batches = list(read_batches(ready.value.args[0]))
        assert set.union(*batches) == set(range(24))
        in_order = all(max(a) <= min(b) for a, b in pairwise(batches))
        assert in_order is curriculum
