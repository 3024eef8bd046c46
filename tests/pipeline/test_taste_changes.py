"""A confirmed change of taste is remembered by a run that a person launches, and a model that
forgot it does not serve.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.application.resources.simulation import simulated_votes
from rlhf_pipeline.core.records import Choice, ModelVersion
from tests.pipeline.test_retraining_in_process import quick

TURNED = {Choice.A: Choice.B, Choice.B: Choice.A}
CALIBRATION = {"min_pairs": 10, "min_compared_pairs": 10}


def reversed_votes(settings: Any) -> Callable[..., Any]:
    """People choose what they would have rejected."""
    vote = simulated_votes(settings)
    return lambda *arguments: [
        cast.model_copy(update={"choice": TURNED.get(cast.choice, cast.choice)})
        for cast in vote(*arguments)
    ]


@pytest.fixture(scope="module")
def changed(grown: Any, branch: Callable[..., Any], few_prompts: Path) -> Any:
    """A fourth day on which taste is reversed; the trigger confirms it, and a person launches
    `retraining` with nothing said.
    """
    voters = {"annotators": reversed_votes(grown.settings)}
    project = branch(grown, overrides=voters, evaluation_file=few_prompts)
    day = project.day(3)
    project.collect(day)
    project.vote(day)
    project.run("feedback", day)
    assert project.tick("retraining").run_requests
    project.run("retraining", config=quick(calibration=CALIBRATION))
    return project


def right_since_the_change(project: Any, number: int) -> float:
    """Accuracy on held-out pairs of the fourth day."""
    pairs = project.files.read_frame("preference_pairs")
    pairs = pairs[pairs["day"] == project.day(3)]
    pairs = pairs[(pairs["split"] != "train") & (pairs["agreement"] > 0.5)]
    judge = project.champions.judge(project.registry.get("reward_model", number))
    return float((judge.p_chosen(pairs) > 0.5).mean())


def test_run_launched_by_hand_uses_the_confirmed_change(changed: Any) -> None:
    (recorded,) = changed.store.taste_changes.all()
    first = changed.files.read_frame("votes", changed.day(3))["seq"].min()
    # the detectors date it by the errors they have seen: one of the votes on each comparison
    assert abs(recorded.change_seq - first) < 120
    version = changed.files.read_record("reward_model", ModelVersion)
    assert version.params["taste_changes"] == {"since_seq": recorded.change_seq}
    assert version.params["weight_before_change"] < 1
    rows: pd.DataFrame = changed.files.read_frame("retraining_set")
    is_old = rows["reason"].str.contains("before the change")
    assert (rows.loc[rows["origin"] == "relabelled", "weight"] == 1).all()
    assert is_old[rows["origin"] == "relabelled"].all()
    assert (rows.loc[~is_old, "weight"] == 1).all()
    assert changed.judge == version.label == "demo.reward_model@2"
    assert right_since_the_change(changed, 2) > 0.6
    assert right_since_the_change(changed, 1) < 0.4


def test_model_that_forgot_the_change_does_not_become_champion(
    changed: Any, branch: Callable[..., Any]
) -> None:
    project = branch(changed)
    project.store.taste_changes.retract(1, reason="to forget it", actor="test")
    project.run("retraining", config=quick(calibration=CALIBRATION | {"window_pairs": 20}))
    forgetful = project.files.read_record("reward_model", ModelVersion)
    assert forgetful.label == "demo.reward_model@3"
    assert "taste_changes" not in forgetful.params
    assert right_since_the_change(project, 3) < right_since_the_change(project, 2)
    assert project.judge == "demo.reward_model@2"
    refusal = project.champions.refusal(forgetful.label)
    assert refusal is not None
    assert "on the latest 20 held-out pairs is below that of the champion" in refusal.cause
    gate = project.store.gates.all()[-1]
    assert not gate.promoted
    assert "the reward model of the evaluation was refused" in " ".join(
        check.reason for check in gate.checks
    )
