"""A fit on the encoder that was named as what to go on with: the command, the registry and MLflow's
run say which was asked for, and why.
"""

import json
from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.errors import ModelHashMismatch, ModelNotFound
from tests.learnt_home import LearntHome, voted_home
from tests.unit.reward_model.tiny_networks import save_tiny_bert

HUB = "distilbert/distilbert-base-uncased"
QUICK = (
    "--set",
    "l2_grid=[0.3]",
    "--set",
    "context_penalty_grid=[3.0]",
    "--set",
    "n_resamples=100",
)


@pytest.fixture
def voted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LearntHome:
    """With a hub that cannot be reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return voted_home(tmp_path / "voted")


def test_requested_and_used_encoder_are_recorded(
    voted: LearntHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    voted.rlhf("votes", "prepare")
    monkeypatch.setenv("RLHF_ENCODER", HUB)
    with pytest.raises(ModelNotFound, match=f"{HUB},offline"):
        voted.rlhf("reward", "train", *QUICK)
    monkeypatch.setenv("RLHF_ENCODER", f"{HUB},offline")
    said = voted.rlhf("reward", "train", *QUICK).output
    assert f"on encoder offline instead of {HUB}" in said
    registry = Workspace(voted.settings).registry
    (version,) = registry.list_versions("reward_model")
    assert (version.params["encoder_asked"], version.params["encoder_used"]) == (HUB, "offline")
    assert "the hub does not give it" in version.params["encoder_instead_because"]
    (report,) = (voted.settings.home / "mlflow" / "artifacts").rglob("report.json")
    told = json.loads(report.read_text(encoding="utf-8"))
    assert (told["encoder_asked"], told["encoder_used"]) == (HUB, "offline")
    assert told["encoder_instead_because"] == version.params["encoder_instead_because"]


FINE_TUNED = (
    "--kind",
    "transformer",
    "--set",
    "steps=3",
    "--set",
    "max_tokens=32",
    "--set",
    "n_resamples=100",
)


@pytest.mark.parametrize("how", [QUICK, FINE_TUNED], ids=["embedding", "transformer"])
def test_training_continues_from_a_fallback_model_once_the_encoder_is_back(
    voted: LearntHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: tuple[str, ...]
) -> None:
    first, second = tmp_path / "first", save_tiny_bert(tmp_path / "second", seed=1)
    voted.rlhf("votes", "prepare")
    monkeypatch.setenv("RLHF_ENCODER", f"{first},{second}")
    voted.rlhf("reward", "train", *how)
    save_tiny_bert(first, seed=2)
    checkpoint = voted.settings.home / "models" / "vote_predictor_checkpoint"
    again = (
        "reward",
        "train",
        "--checkpoint",
        str(checkpoint),
        "--out",
        str(tmp_path / "again"),
        *how,
    )
    said = voted.rlhf(*again).output
    registry = Workspace(voted.settings).registry
    before, after = sorted(
        registry.list_versions("reward_model"), key=lambda version: version.version
    )
    assert f"{after.label} from {before.label}" in said
    assert f"on encoder {second} instead of {first}" in said.replace("\n", "")
    assert after.params["encoder_used"] == str(second)
    assert (
        after.params["encoder_instead_because"]
        == "the model that the fit starts from was fitted on it"
    )
    monkeypatch.setenv("RLHF_ENCODER", str(first))
    with pytest.raises(
        ModelHashMismatch, match=f"RLHF_ENCODER={second}|Name it in the setting `encoder`"
    ):
        voted.rlhf(*again)
