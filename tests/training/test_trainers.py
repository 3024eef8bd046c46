import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData, TrainingFailed
from rlhf_pipeline.reward_model import TransformerParams, TransformerRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.network import pad
from rlhf_pipeline.reward_model.trainers import TrainingContext, TrainingRecord, shared_text
from tests.unit.reward_model.tiny_networks import save_tiny_bert, word_pairs

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "learning_rate": 3e-3,
    "epochs": 2,
    "precision": "float32",
    "start_from_probe": True,
}
FOR_TRL = SMALL | {
    "trainer": "trl",
    "label": "majority",
    "start_from_probe": False,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def model_on(folder, *, around=None, checkpoints=None, **given) -> TransformerRewardModel:
    params = TransformerParams(**(SMALL | given))
    return TransformerRewardModel(
        params, Encoder(folder, max_tokens=24), around=around, checkpoints=checkpoints
    )


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
        assert record.n_tokens <= record.n_padded_tokens
        assert record.cpu_s > 0


def test_trl_is_the_same_for_the_same_seed(bert):
    first, again = (model_on(bert, **FOR_TRL, steps=5).fit(word_pairs()) for _ in range(2))
    assert first.weights_hash == again.weights_hash


def test_trl_leaves_nothing_behind_but_weights(bert):
    import torch

    model = model_on(bert, **(FOR_TRL | {"precision": "bfloat16"}), steps=1).fit(word_pairs())
    network = model.networks_[0]
    texts = pad(model.reader.encode(["ask 1"], ["kind warm cold"])[0], model.reader.pad_id)
    with torch.inference_mode():
        assert network(*texts).logits.item() == network.score_pooled(network.pool(*texts)).item()


def test_trl_learns_with_gradient_checkpointing(bert):
    model = model_on(bert, **(FOR_TRL | {"gradient_checkpointing": True})).fit(word_pairs())
    assert accuracy(model) > 0.9


def test_settings_that_trl_cannot_learn_are_refused(bert):
    pairs = word_pairs()
    with pytest.raises(ConfigurationError, match="cannot learn the label votes"):
        model_on(bert, **(FOR_TRL | {"label": "votes"})).fit(pairs)
    with pytest.raises(ConfigurationError, match="ignores weights"):
        model_on(bert, **FOR_TRL).fit(pairs, weights=np.linspace(1, 2, len(pairs)))
    with pytest.raises(NotEnoughData, match="preferred side"):
        model_on(bert, **FOR_TRL).fit(pairs.assign(agreement=0.5))


def test_a_watch_sees_every_step_and_stops_it(bert):
    for trainer in ({}, FOR_TRL):
        seen: list[int] = []

        def watch(step, network, seen=seen):
            seen.append(step)
            return step == 3

        model = model_on(bert, around=TrainingContext(watch=watch), **trainer).fit(word_pairs())
        assert seen == [1, 2, 3]
        assert (model.records_[0].n_steps, model.records_[0].was_stopped) == (3, True)


def test_progress_is_reported_at_every_step(bert):
    for trainer in ({}, FOR_TRL):
        told: list[tuple[int, int]] = []
        model_on(bert, steps=4, **trainer).fit(
            word_pairs(),
            progress=lambda done, total, note="", told=told: told.append((done, total)),
        )
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    "trainer", [{"start_from_probe": False}, FOR_TRL], ids=["shared_text", "trl"]
)
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


@pytest.mark.parametrize("checkpointing", [False, True])
def test_plain_attention_learns_what_the_fused_one_does(bert, monkeypatch, checkpointing):
    def learnt():
        model = model_on(bert, steps=3, gradient_checkpointing=checkpointing).fit(word_pairs())
        return model.score(["ask 1"] * 2, ["kind warm", "curt cold"])

    plain = learnt()
    monkeypatch.setattr(shared_text, "PLAIN_ATTENTION_WIDTH", 0)
    np.testing.assert_allclose(plain, learnt(), atol=1e-6)


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


KILLED = """
    import sys, time
    from pathlib import Path
    import torch
    from tests.training.test_trainers import model_on
    from tests.unit.reward_model.tiny_networks import word_pairs

    torch.set_num_threads(int(sys.argv[3]))
    model = model_on(
        Path(sys.argv[1]), checkpoints=Path(sys.argv[2]), checkpoint_every=3, n_members=2)
    model.fit(word_pairs(), progress=lambda done, total, note="": time.sleep(0.3))
"""


def test_killed_and_resumed_gives_the_weights_of_one_that_was_not(bert, tmp_path):
    import torch

    command = [
        sys.executable,
        "-c",
        textwrap.dedent(KILLED),
        str(bert),
        str(tmp_path),
        str(torch.get_num_threads()),
    ]
    victim = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    until = time.monotonic() + 300
    while not list((tmp_path / "member-0").glob("step-*6-*.safetensors")):
        assert time.monotonic() < until
        assert victim.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    whole = model_on(bert, n_members=2).fit(word_pairs())
    resumed = model_on(bert, n_members=2, checkpoints=tmp_path, checkpoint_every=3).fit(
        word_pairs()
    )
    assert [record.resumed_from for record in resumed.records_] == [6, None]
    assert resumed.weights_hash == whole.weights_hash
    assert [record.loss_curve for record in resumed.records_] == [
        record.loss_curve for record in whole.records_
    ]
    assert resumed.records_[0].n_pairs_seen == whole.records_[0].n_pairs_seen


def stopped_at(bert, folder, step, **given):
    """A training that was cut off after `step` steps, its checkpoints left behind."""

    class Cut(Exception): ...

    def watch(done, network):
        if done == step:
            raise Cut

    model = model_on(
        bert, around=TrainingContext(watch=watch), checkpoints=folder, checkpoint_every=3, **given
    )
    with pytest.raises(Cut):
        model.fit(word_pairs())


def resumed_from(bert, folder, **given):
    return (
        model_on(bert, checkpoints=folder, checkpoint_every=3, **given)
        .fit(word_pairs())
        .records_[0]
        .resumed_from
    )


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(bert, tmp_path):
    stopped_at(bert, tmp_path, 7)
    newest = max((tmp_path / "member-0").glob("step-*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    assert resumed_from(bert, tmp_path) == 3


def test_a_cut_checkpoint_leaves_nothing_to_resume_from_but_older_ones(bert, tmp_path):
    stopped_at(bert, tmp_path, 4)
    (only,) = (tmp_path / "member-0").glob("step-*.safetensors")
    only.write_bytes(only.read_bytes()[:1000])
    assert resumed_from(bert, tmp_path) is None


def test_checkpoints_of_another_training_are_not_continued(bert, tmp_path):
    stopped_at(bert, tmp_path, 4)
    assert resumed_from(bert, tmp_path, learning_rate=1e-3) is None


def test_at_most_two_checkpoints_are_kept(bert, tmp_path):
    stopped_at(bert, tmp_path, 13)
    assert len(list((tmp_path / "member-0").glob("step-*.safetensors"))) == 2


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
        padded=model.records_[0].n_padded_tokens,
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
    # Each did a part of the work, and both together all of it.
    assert min(first["padded"], second["padded"]) > 0
    assert first["padded"] + second["padded"] == alone.records_[0].n_padded_tokens
    # The tolerances tell something: another order of the data ends farther away.
    other = model_on(bert, **FOUR, seed=1).fit(word_pairs())
    assert np.abs(flat(alone) - flat(other)).max() > 1e-2
    assert np.abs(scores(alone) - scores(other)).max() > 1e-2


def test_more_processes_than_batches_are_refused(bert):
    with pytest.raises(ConfigurationError, match="2 processes share 1 batches"):
        model_on(bert, around=TrainingContext(world=2)).fit(word_pairs())
    with pytest.raises(ConfigurationError, match="shared_text alone"):
        model_on(bert, around=TrainingContext(world=2), **FOR_TRL).fit(word_pairs())
