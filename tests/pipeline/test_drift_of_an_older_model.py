"""Rows of a day outlive what their reward model needs: the day is reported all the same, and says
what is missing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert


def test_day_is_reported_without_embeddings_if_the_encoder_is_missing(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    """Where another one stands in, the champion may be on either: its errors are stored, so that
    their picture needs neither.
    """
    stand_in = save_tiny_bert(tmp_path / "stand-in")
    project = branch(grown, encoder=f"{tmp_path / 'away'},{stand_in}")
    project.materialise(["drift_report"], grown.day(2))
    report = project.files.read_frame("drift_report", grown.day(2))
    assert (
        "Set `encoder` back"
        in json.loads(report[report["space"] == "embeddings"].iloc[0]["evidence"])["reason"]
    )


def test_day_of_a_deleted_model_has_no_embeddings(grown: Any, branch: Callable[..., Any]) -> None:
    """Its predictions and its reference window are stored elsewhere."""
    project, day = branch(grown), grown.day(2)
    before = project.files.read_frame("drift_report", day).set_index(["space", "detector"])
    project.registry.tracking.client.delete_registered_model("demo.reward_model")
    project.materialise(["drift_report"], day)
    report = project.files.read_frame("drift_report", day).set_index(["space", "detector"])
    reason = json.loads(report.loc[("embeddings", "mmd"), "evidence"])["reason"]
    assert reason.startswith("Left out: demo.reward_model@1 cannot be loaded")
    assert "The registry holds no demo.reward_model@1" in reason
    for row in (("prompt_text", "word_classifier"), ("scores", "ks"), ("errors", "error_rate")):
        assert report.loc[row, "n_reference"] == before.loc[row, "n_reference"] > 0
        assert report.loc[row, "n_current"] == before.loc[row, "n_current"] > 0
