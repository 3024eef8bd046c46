"""The asset `prompts` with the parameters of its launchpad: sources, rules, what is told of prompts
that were left out.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from tests.project import Project


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project without a day, a policy or a reward model: prompts need none of them."""
    home = tmp_path_factory.mktemp("home")
    instance = dg.DagsterInstance.ephemeral(tempdir=str(home / "runs"))
    project = Project(
        Settings(home=home, completion_backend="template", annotators="simulated"), instance, {}
    )
    prepare(Workspace(project.settings))
    yield project
    project.close()


def made(project: Any, day: str, *, ok: bool = True, **config: Any) -> Any:
    return project.materialise(
        ["prompts"], day, ok=ok, config={"ops": {"prompts": {"config": config}}}
    )


def test_launchpad_chooses_rules_and_source(
    small: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    held_out = tmp_path / "held_out.jsonl"  # 300 prompts on a topic would take 20 s to draw
    held_out.write_text(json.dumps({"prompt": "Is this one held out?"}), encoding="utf-8")
    project, day = branch(small, evaluation_file=held_out), small.day(3)
    made(
        project,
        day,
        n=12,
        source="evolution",
        library="wide",
        population=4,
        generations=2,
        must_not=["ada"],
        max_chars=900,
    )
    frame = project.files.read_frame("prompts", day)
    assert set(frame["source"]) == {"evolution"}
    assert not frame["text"].str.contains(r"\bada\b", case=False).any()
    made(
        project, day, n=6, categories={"creative": 1.0}, topic="a garden", min_topic_similarity=0.2
    )
    assert len(project.files.read_frame("prompts", day)) == 6


def test_completion_backend_writes_prompts_on_request(
    small: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(small, completion_backend="template"), small.day(3)
    project.store.migrate()  # as `rlhf init` does: what is written stands in its ledger
    result = made(project, day, n=6, source="freeform", uses_backend=True)
    assert {(run.asset, *run.states) for run in project.store.generation.list_runs()} == {
        ("prompts", "succeeded")
    }
    assert (
        result.asset_materializations_for_node("prompts")[0]
        .metadata["numbers"]
        .value["n_not_written"]
        == 0
    )
    frame = project.files.read_frame("prompts", day)
    assert all("instruction" in json.loads(variables) for variables in frame["variables"])
