import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from rlhf_pipeline.core.errors import ConfigurationError, TrainingFailed
from rlhf_pipeline.learn.reward_model import TransformerParams, TransformerRewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert, word_pairs

SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 12,
    "learning_rate": 3e-3,
    "epochs": 2,
    "precision": "float32",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def model_on(folder, **options) -> TransformerRewardModel:
    params = TransformerParams(**(SMALL | options))
    return TransformerRewardModel(params, Encoder(folder, max_tokens=24))


def scores(model) -> np.ndarray:
    """Of texts that nobody trained on."""
    pairs = word_pairs(seed=1)
    return model.score(pairs["prompt"].tolist(), pairs["chosen"].tolist())


def test_each_text_of_a_group_is_encoded_once(bert):
    pairs = word_pairs()
    record = model_on(bert, epochs=4).fit(pairs).records_[0]
    assert record.n_pairs_seen >= 4 * len(pairs)
    assert record.n_texts_encoded < record.n_pairs_seen  # two for each pair without groups
    assert len(record.loss_curve) == record.n_steps
    assert np.mean(record.loss_curve[-5:]) < 0.9 * record.loss_curve[0]
    assert record.cpu_s > 0


def test_a_single_step_moves_the_weights(bert):
    before = model_on(bert, steps=1, learning_rate=1e-12).fit(word_pairs())
    after = model_on(bert, steps=1).fit(word_pairs())
    assert np.abs(scores(before) - scores(after)).max() > 1e-3


def test_a_nan_loss_stops_the_training(tmp_path):
    folder = save_tiny_bert(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingFailed, match="The loss of step 1 is nan"):
        model_on(folder).fit(word_pairs())


def test_accumulated_batches_are_one_larger_batch(bert):
    """The loss is divided by all pairs of a step, so the same groups in one batch or in three move
    the weights alike.
    """
    single, three = (
        model_on(bert, trainer={name: 3}).fit(word_pairs())
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    np.testing.assert_allclose(scores(single), scores(three), atol=1e-5)
    assert single.records_[0].n_steps == three.records_[0].n_steps
    assert single.records_[0].n_pairs_seen == three.records_[0].n_pairs_seen


def test_fields_that_the_trainer_lacks_are_refused(bert):
    with pytest.raises(ConfigurationError, match="gradient_acumulation"):
        model_on(bert, trainer={"gradient_acumulation": 2}).fit(word_pairs())


def test_killed_training_resumes_to_the_same_weights(bert, tmp_path):
    checkpoints = {"output_dir": str(tmp_path / "checkpoints"), "save_steps": 2}

    def kill(done: int, total: int, note: str = "") -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_on(bert, steps=8, trainer=checkpoints).fit(word_pairs(), progress=kill)
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert {path.name for path in left.iterdir()} == {"checkpoint-2", "checkpoint-4"}
    # a save that was cut short has no state yet
    (left / "checkpoint-6").mkdir()
    steps: list[int] = []
    resumed = model_on(bert, steps=8, trainer=checkpoints).fit(
        word_pairs(), progress=lambda done, total, note="": steps.append(done)
    )
    assert steps == [5, 6, 7, 8]
    whole = model_on(bert, steps=8).fit(word_pairs())
    np.testing.assert_array_equal(scores(resumed), scores(whole))
    assert resumed.summary.loss_curve == whole.summary.loss_curve
    assert not left.exists()  # nothing is left of a training that ended


def test_other_data_does_not_resume_a_checkpoint(bert, tmp_path):
    checkpoints = {"output_dir": str(tmp_path), "save_steps": 1}

    def kill(done: int, total: int, note: str = "") -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_on(bert, steps=4, trainer=checkpoints).fit(word_pairs(), progress=kill)
    other = model_on(bert, steps=4, trainer=checkpoints).fit(word_pairs(seed=2))
    alone = model_on(bert, steps=4).fit(word_pairs(seed=2))
    np.testing.assert_array_equal(scores(other), scores(alone))


def test_accelerate_launch_trains_in_two_processes(bert):
    steps: list[tuple[int, int]] = []
    start = model_on(bert, steps=1).fit(word_pairs())
    launched = model_on(bert, steps=3, launch="--multi_gpu --num_processes 2 --main_process_port 0")
    launched.fit(
        word_pairs(11),
        warm_start=start,
        progress=lambda done, total, note="": steps.append((done, total)),
    )
    assert (1, 3) in steps
    two = {"gradient_accumulation_steps": 2}
    alone = model_on(bert, steps=3, trainer=two).fit(word_pairs(11), warm_start=start)
    np.testing.assert_allclose(scores(launched), scores(alone), atol=1e-4)
    assert launched.records_[0].n_pairs_seen == alone.records_[0].n_pairs_seen


def test_options_that_accelerate_lacks_are_refused(bert):
    broken = model_on(bert, launch="--no_such_option")
    with pytest.raises(ConfigurationError, match="unrecognized arguments: --no_such_option"):
        broken.fit(word_pairs())
