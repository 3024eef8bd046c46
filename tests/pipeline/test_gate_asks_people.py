"""The gate asks people: its sensor deals cards, and its job carries out what their votes decide."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.application.jobs.loop import RETRIED
from rlhf_pipeline.application.sensors.runs import RUN_KEY_TAG
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.improve.releases import Releases
from tests.unit.improve.test_gate_sessions import PEOPLE, begin, vote_all

APPROVAL = "loop:\n  release: {approval: required, checklist: [ethics]}\n"


@pytest.fixture
def asking(make_project: Callable[..., Any], tmp_path: Path) -> Any:
    """A project whose candidate people are asked about, before the sensor's first tick."""
    config = tmp_path / "rlhf.yaml"
    config.write_text("loop: {}\n")
    project = make_project(annotators="human", completion_backend="template", config=config)
    begin(project.store, registered=register_candidate(project), max_votes=60)
    return project


def register_candidate(project: Any) -> ModelVersion:
    folder = project.settings.home / "second"
    folder.mkdir()
    (folder / "weights").write_text("of version 2")
    with project.registry.run("candidate_model", {}, run_key="2") as run:
        return project.registry.register("policy", folder, run=run, parent="demo.policy@1")


def decide_by_votes(project: Any, preference: float) -> Any:
    """Ticks and votes until the sensor requests the decision; then the requested run."""
    for number in range(40):
        data = project.tick("gate")
        if data.run_requests:
            break
        assert vote_all(project.store, PEOPLE, preference, number)
    (request,) = data.run_requests
    tags = {RUN_KEY_TAG: request.run_key}
    result = project.run("gate_decision", tags=tags)
    assert result.dagster_run.tags.items() >= RETRIED.items()  # requested once, whatever happens
    return project.store.gates.latest()


def test_votes_request_a_release_that_a_second_person_approves(asking: Any) -> None:
    asking.settings.config.write_text(APPROVAL)
    assert decide_by_votes(asking, 0.95).promoted
    assert asking.champions.policy().version == 1
    assert "asks nobody" in asking.tick("gate").skip_message
    releases = Releases(asking.champions, asking.settings)
    (request,) = releases.list_waiting()
    assert request.label == "demo.policy@2"
    assert request.reason.startswith("By people: win rate")
    releases.approve(request.act_id, reason="read", actor="bob", ticked=["ethics"])
    assert asking.champions.policy().version == 2
    asking.store.audit.verify()
