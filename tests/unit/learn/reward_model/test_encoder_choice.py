"""Which encoder is used where the one asked for is not there: none that was not named, and the
record says which and why.
"""

import json
import logging
from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.learn.reward_model import (
    LearningData,
    TransformerParams,
    TransformerRewardModel,
    encoder_params,
    fit_reward_model,
    load_reward_model,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert, word_pairs

HUB = "distilbert/distilbert-base-uncased"
SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "texts_per_prompt": 6,
    "learning_rate": 3e-3,
    "epochs": 1,
    "precision": "float32",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that cannot be reached: what was fetched before lies in this folder, which is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fetched(hub: Path, name: str = HUB) -> Path:
    """The folder of a model that was fetched before."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("distilbert"), distilled=True)


def test_a_missing_encoder_without_a_fallback_is_an_error(hub: Path):
    with pytest.raises(ModelNotFound, match=rf"No encoder '{HUB}'.*{HUB},offline"):
        Encoder(HUB)


def test_cached_encoder_is_used_offline(hub: Path):
    folder = save_tiny_bert(fetched(hub), distilled=True)
    encoder = Encoder(f"{HUB},offline")
    assert encoder.folder == folder
    assert encoder.choice.to_params() == {"encoder_asked": HUB, "encoder_used": HUB}
    assert encoder.encode(["kind right"]).shape == (1, 16)


def test_incomplete_download_is_ignored(hub: Path):
    (fetched(hub) / "config.json").write_text("{}")
    with pytest.raises(
        ModelNotFound, match=r"No model\.safetensors among the files of 'distilbert/"
    ):
        Encoder(HUB)
    assert Encoder(f"{HUB},offline").choice.used == "offline"


def test_the_named_fallback_is_used_and_reported_with_its_reason(
    hub: Path, distilbert: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        choice = Encoder(f"{HUB}, {distilbert}").choice
    assert (choice.asked, choice.used, choice.folder) == (HUB, str(distilbert), distilbert)
    assert f"No encoder '{HUB}'" in str(choice.instead)
    assert f"not {HUB}" in caplog.text
    offline = Encoder(f"{HUB},gone/too,offline")
    assert offline.hash == Encoder().hash
    assert offline.choice.to_params()["encoder_used"] == "offline"
    assert "'gone/too'" in str(offline.choice.instead)


def test_invalid_names_and_missing_fallbacks_are_named(hub: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="a name is empty"):
        Encoder("a/b,,offline")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"None of the encoders gone/one, .*empty is there"):
        Encoder(f"gone/one,{tmp_path / 'empty'}")


@pytest.mark.parametrize("label", ["majority", "votes"])
def test_distilbert_is_fine_tuned_by_its_configured_label(
    hub: Path, distilbert: Path, tmp_path: Path, label: str
):
    """The report, the parameters of the version and the words of the asset name both encoders,
    through save and load.
    """
    params = TransformerParams(**SMALL, label=label)
    # another window: it is made anew
    model = TransformerRewardModel(params, Encoder(f"{HUB},{distilbert}", max_tokens=64))
    fitted = fit_reward_model(
        LearningData(word_pairs()),
        reward_model_params(kind="transformer", n_resamples=100),
        model=model,
    )
    report = fitted.report
    assert (report.label, report.encoder_asked, report.encoder_used) == (
        label,
        HUB,
        str(distilbert),
    )
    assert f"No encoder '{HUB}'" in str(report.encoder_instead_because)
    assert f"on encoder {distilbert} instead of {HUB} (No encoder" in report.summary
    assert encoder_params(fitted.model) == {
        "encoder_asked": HUB,
        "encoder_used": str(distilbert),
        "encoder_instead_because": report.encoder_instead_because,
    }
    fitted.model.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["encoder_source"] == str(
        distilbert
    )
    again = load_reward_model(tmp_path / "model")
    scores = again.score(["ask 1", "ask 1"], ["kind right", "vague cold"])
    assert scores.shape == (2,), "one number for each completion"
    assert scores.tolist() == pytest.approx(
        fitted.model.score(["ask 1", "ask 1"], ["kind right", "vague cold"]).tolist()
    )
