import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData, TrainingFailed
from rlhf_pipeline.reward_model import TransformerParams, TransformerRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.trainers import TrainingContext, TrainingRecord
from tests.unit.reward_model.tiny_networks import save_tiny_bert, word_pairs

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "learning_rate": 3e-3,
    "epochs": 2,
    "precision": "float32",
}
FOR_TRL = SMALL | {
    "trainer": "trl",
    "label": "majority",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def model_on(folder, *, around=None, **given) -> TransformerRewardModel:
    params = TransformerParams(**(SMALL | given))
    return TransformerRewardModel(params, Encoder(folder, max_tokens=24), around=around)


def accuracy(model) -> float:
    pairs = word_pairs(seed=1)
    prompts = pairs["prompt"].tolist()
    right = model.score(prompts, pairs["chosen"].tolist()) > model.score(
        prompts, pairs["rejected"].tolist()
    )
    return float(right[pairs["agreement"] == 1].mean())


def test_trl_learns_the_same_pairs_and_reports_the_same_fields(bert):
    ours, theirs = (
        model_on(bert, **FOR_TRL | {"trainer": name}).fit(word_pairs())
        for name in ("shared_text", "trl")
    )
    assert min(accuracy(ours), accuracy(theirs)) > 0.9
    by_ours, by_trl = ours.records_[0], theirs.records_[0]
    assert set(by_ours.model_dump()) == set(by_trl.model_dump()) == set(TrainingRecord.model_fields)
    n = len(word_pairs())
    assert (by_trl.n_pairs_seen, by_trl.n_texts_encoded, by_trl.n_steps) == (
        2 * n,
        4 * n,
        -(-n // 8) * 2,
    )
    # Each text once a batch: what the trainer is for.
    assert by_ours.n_pairs_seen >= 2 * n
    assert by_ours.n_texts_encoded < by_trl.n_texts_encoded / 2
    for record in (by_ours, by_trl):
        assert len(record.loss_curve) == record.n_steps
        assert np.mean(record.loss_curve[-5:]) < 0.9 * record.loss_curve[0]
        assert record.cpu_s > 0


def test_settings_that_trl_cannot_learn_are_refused(bert):
    pairs = word_pairs()
    with pytest.raises(ConfigurationError, match="cannot learn the label votes"):
        model_on(bert, **(FOR_TRL | {"label": "votes"})).fit(pairs)
    with pytest.raises(ConfigurationError, match="ignores weights"):
        model_on(bert, **FOR_TRL).fit(pairs, weights=np.linspace(1, 2, len(pairs)))
    with pytest.raises(NotEnoughData, match="preferred side"):
        model_on(bert, **FOR_TRL).fit(pairs.assign(agreement=0.5))


def test_progress_is_reported_at_every_step(bert):
    for trainer in ({}, FOR_TRL):
        told: list[tuple[int, int]] = []
        model_on(bert, steps=4, **trainer).fit(
            word_pairs(),
            progress=lambda done, total, note="", told=told: told.append((done, total)),
        )
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("trainer", [{}, FOR_TRL], ids=["shared_text", "trl"])
def test_a_nan_loss_stops_the_training(tmp_path, trainer):
    folder = save_tiny_bert(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingFailed, match=r"is nan|is not finite \(\[nan\]"):
        model_on(folder, **trainer).fit(word_pairs())


def test_gradient_checkpointing_gives_the_same_weights(bert):
    plain, checkpointed = (
        model_on(bert, steps=3, gradient_checkpointing=on).fit(word_pairs()) for on in (False, True)
    )
    texts = (["ask 1"] * 2, ["kind warm", "curt cold"])
    np.testing.assert_allclose(plain.score(*texts), checkpointed.score(*texts), atol=1e-6)


def test_several_batches_a_step_are_one_larger_batch(bert):
    """Gradients are summed over the pairs of all batches, so the same pairs in one batch or in
    three move the weights alike.
    """
    pairs = word_pairs(3, 6)
    one = model_on(bert, texts_per_batch=18, texts_per_prompt=6, steps=2).fit(pairs)
    three = model_on(bert, texts_per_batch=6, texts_per_prompt=6, batches_per_step=3, steps=2).fit(
        pairs
    )
    texts = (pairs["prompt"].tolist(), pairs["chosen"].tolist())
    np.testing.assert_allclose(one.score(*texts), three.score(*texts), atol=1e-5)
    assert one.records_[0].n_pairs_seen == three.records_[0].n_pairs_seen == 2 * len(pairs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


FOUR = {"batches_per_step": 4, "epochs": 5}


def train_as(rank: int, world: int, port: int, bert: str, out: str) -> None:
    """One of `world` processes; what it learnt goes to `out`-rank.npz."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    model = model_on(Path(bert), around=TrainingContext(rank=rank, world=world), **FOUR).fit(
        word_pairs()
    )
    np.savez(
        f"{out}-{rank}.npz",
        weights=flat(model),
        scores=scores(model),
    )
    dist.destroy_process_group()


UNSEEN = ("key.bias", "encoder.layer.1.output.LayerNorm.bias")


def flat(model) -> np.ndarray:
    """All weights in one row, but those that no margin sees: their gradient is rounding alone,
    which AdamW blows up to full steps.
    """
    parts = [
        part for name, part in model.networks_[0].named_parameters() if not name.endswith(UNSEEN)
    ]
    return np.concatenate([part.detach().numpy().ravel() for part in parts])


def scores(model) -> np.ndarray:
    """Of texts that nobody trained on."""
    pairs = word_pairs(seed=1)
    return model.score(pairs["prompt"].tolist(), pairs["chosen"].tolist())


def test_two_processes_learn_the_weights_of_one(bert, tmp_path):
    from torch.multiprocessing import spawn

    spawn(train_as, args=(2, free_port(), str(bert), str(tmp_path / "learnt")), nprocs=2)
    first, second = (np.load(tmp_path / f"learnt-{rank}.npz") for rank in range(2))
    alone = model_on(bert, **FOUR).fit(word_pairs())
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_allclose(first["weights"], flat(alone), atol=1e-4)
    # all weights, those that no margin sees too
    np.testing.assert_allclose(first["scores"], scores(alone), atol=1e-3)
    np.testing.assert_array_equal(first["scores"], second["scores"])
    # The tolerances tell something: another order of the data ends farther away.
    other = model_on(bert, **FOUR, seed=1).fit(word_pairs())
    assert np.abs(flat(alone) - flat(other)).max() > 1e-2
    assert np.abs(scores(alone) - scores(other)).max() > 1e-2


def test_more_processes_than_batches_are_refused(bert):
    with pytest.raises(ConfigurationError, match="2 processes share 1 batches"):
        model_on(bert, around=TrainingContext(world=2)).fit(word_pairs())
    with pytest.raises(ConfigurationError, match="shared_text alone"):
        model_on(bert, around=TrainingContext(world=2), **FOR_TRL).fit(word_pairs())
