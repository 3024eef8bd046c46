"""Every kind keeps the promises of the protocol; an installed third kind runs the loop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_pipeline.learn.reward_model import (
    REWARD_MODELS,
    EmbeddingParams,
    EmbeddingRewardModel,
    Encoder,
    TransformerParams,
    TransformerRewardModel,
)
from rlhf_pipeline.simulation.testing import check_reward_model
from tests.learnt_home import voted_home
from tests.unit.learn.reward_model.length_model import LengthRewardModel
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert
from tests.unit.learn.reward_model.word_pairs import WordEncoder

ROOT = Path(__file__).parents[4]
SMALL = {"max_tokens": 24, "texts_per_batch": 12, "precision": "float32", "steps": 2}


def make_embedding(folder):
    params = EmbeddingParams(l2_grid=[0.1], context_penalty_grid=[3.0], n_members=2)
    return lambda: EmbeddingRewardModel(params, WordEncoder())


def make_transformer(folder):
    encoder = Encoder(save_tiny_bert(folder), max_tokens=24)
    return lambda: TransformerRewardModel(TransformerParams(**SMALL), encoder)


MAKERS = {"embedding": make_embedding, "transformer": make_transformer}


def test_every_kind_is_checked_against_the_protocol():
    shipped = {
        name for name, kind in REWARD_MODELS.items() if kind.__module__.startswith("rlhf_pipeline.")
    }
    assert set(MAKERS) == shipped


@pytest.mark.parametrize("kind", MAKERS)
def test_reward_model_kind_conforms_to_the_protocol(kind, tmp_path):
    check_reward_model(MAKERS[kind](tmp_path))


def test_minimal_kind_conforms_by_inherited_defaults():
    check_reward_model(LengthRewardModel)


class ForgetfulModel(LengthRewardModel):
    """Loads without what it learnt."""

    @classmethod
    def load(cls, folder, *, encoder=None):
        model = super().load(folder)
        model.slope_ *= 2
        return model


def test_broken_protocol_is_named():
    with pytest.raises(AssertionError, match="length: the loaded model has another weights_hash"):
        check_reward_model(ForgetfulModel)


LOOP = """
import sys
from tests.learnt_home import LearntHome
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.learn.champions import Question
from rlhf_pipeline.web.predictions.predictor import Predictor
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.learn.reward_model import REWARD_MODELS
from pathlib import Path

assert list(REWARD_MODELS) == ["embedding", "transformer", "length"]
from rlhf_pipeline.application.assets.reward_model import RewardModelConfig

config = RewardModelConfig(kind="length", min_pairs=11, length={"power": 0.5})
assert config.kind_params().model_dump() == {"power": 0.5, "min_pairs": 11}
fields = RewardModelConfig.to_fields_dict()
assert "power" in fields["length"].config_type.fields

settings = Settings(home=Path(sys.argv[1]))
home = LearntHome(settings)
home.rlhf("votes", "prepare")
home.rlhf("reward", "train", "--kind", "length", "--set", "power=0.5", "--set", "n_resamples=100")
home.rlhf("reward", "calibrate", "--set", "min_pairs=10", "--set", "n_resamples=100")
champions = Workspace(settings).champions
judge = champions.judge()
version = judge.version
assert judge.reward_model.name == version.params["kind"] == "length", version
assert version.params["power"] == 0.5, version.params
again = home.rlhf("reward", "train", "--kind", "length", "--retrain", "--set", "n_resamples=100")
assert f"from {version.label}" in again.output, again.output
question = Question(prompt="ask", completion_a="a long and kind reply", completion_b="no")
(served,) = Predictor(champions, 60).predict([question])
assert served.reward_model == version.label
assert served.p_calibrated > 0.5, served
"""


def test_an_installed_third_kind_is_trained_calibrated_and_served(tmp_path):
    """In a process of its own: the mapping is read once."""
    installed = tmp_path / "installed"
    info = installed / "length_reward-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: length-reward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlhf_pipeline.reward_model]\n"
        "length = tests.unit.learn.reward_model.length_model:LengthRewardModel\n"
    )
    home = voted_home(tmp_path / "home")
    paths = os.pathsep.join([str(installed), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", LOOP, str(home.settings.home)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
