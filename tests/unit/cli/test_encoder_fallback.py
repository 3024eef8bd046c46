"""A fit on the encoder that was named as what to go on with: the command, the registry and MLflow's
run say which was asked for, and why.
"""

import json
from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.errors import ModelNotFound
from tests.learnt_home import LearntHome, voted_home

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
