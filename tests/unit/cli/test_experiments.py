"""`rlhf experiments` from the start to the deployment of the treatment."""

import json

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ExperimentConflict
from rlhf_pipeline.core.experiments import NewExperiment
from rlhf_pipeline.improve.experiments import Experiments
from rlhf_pipeline.improve.releases import Releases
from tests.policy_versions import register_versions


def test_experiment_is_paused_resumed_and_its_treatment_deployed(rlhf, tmp_path):
    rlhf("init", home=tmp_path)
    register_versions(Settings(home=tmp_path))
    start = rlhf("experiments", "start", "demo.policy@1", "--name", "first", home=tmp_path)
    assert "answers 10% of the sessions" in start.stdout

    def call(*arguments):
        return rlhf("experiments", *arguments, home=tmp_path)

    assert "is paused" in call("pause", "1").stdout
    with pytest.raises(ExperimentConflict, match="is paused and cannot become paused"):
        call("pause", "1")
    assert "10%" in call("resume", "1").stdout
    result = call("show", "1")
    assert json.loads(result.stdout)["experiment"]["status"] == "running"
    command = result.stderr.partition("To deploy its treatment: rlhf ")[2].split()
    rlhf(*command, home=tmp_path)
    assert "completed" in call("list").stdout


def test_draft_is_cancelled(rlhf, tmp_path):
    rlhf("init", home=tmp_path)
    settings = Settings(home=tmp_path)
    register_versions(settings)
    workspace = Workspace(settings)
    draft = NewExperiment(name="later", treatment_model_id="demo.policy@1", status="draft")
    Experiments(Releases(workspace.champions, settings)).create(draft, actor="ann")
    rlhf("experiments", "cancel", "1", "--reason", "no time", home=tmp_path)
    assert "cancelled" in rlhf("experiments", "list", home=tmp_path).stdout
