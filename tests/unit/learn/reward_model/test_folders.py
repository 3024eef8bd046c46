"""What stays of an older model in a folder that is written again: nothing, and of anything else
all.
"""

import pytest

from rlhf_pipeline.core.errors import ArtefactError, ConfigurationError
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.learn.reward_model import (
    TransformerParams,
    TransformerRewardModel,
    load_reward_model,
)
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert, word_pairs
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}


@pytest.fixture(scope="module")
def embedding():
    return EmbeddingRewardModel(EmbeddingParams(**FEW), WordEncoder()).fit(make_pairs(80))


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """Of three members, and of one."""
    encoder = Encoder(save_tiny_bert(tmp_path_factory.mktemp("bert")), max_tokens=24)
    of = [
        TransformerParams(max_tokens=24, steps=1, precision="float32", n_members=n) for n in (3, 1)
    ]
    return [TransformerRewardModel(params, encoder).fit(word_pairs()) for params in of]


def test_no_file_of_an_earlier_model_remains(embedding, transformers, tmp_path):
    of_three, of_one = transformers
    of_one.save(tmp_path / "fresh")
    for first in (of_three, embedding):
        first.save(tmp_path / "used")
        of_one.save(tmp_path / "used")
        assert folder_hash(tmp_path / "used") == folder_hash(tmp_path / "fresh")
        assert load_reward_model(tmp_path / "used").weights_hash == of_one.weights_hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "used"]


def test_an_interrupted_save_leaves_the_old_model(embedding, transformers, tmp_path, monkeypatch):
    embedding.save(tmp_path / "model")

    def stop(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_pipeline.learn.reward_model.transformer.write_atomically", stop)
    with pytest.raises(KeyboardInterrupt):
        transformers[0].save(tmp_path / "model")
    assert (
        load_reward_model(tmp_path / "model", encoder=WordEncoder()).weights_hash
        == embedding.weights_hash
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_folder_with_other_files_is_left_alone(embedding, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match=r"holds thesis\.tex .* new or empty"):
        embedding.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ArtefactError, match="parents are folders"):
        embedding.save(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
