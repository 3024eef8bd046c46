"""kill -9 in the middle of a stage: the last good artefact stays, a re-run completes, nothing is
doubled.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.core.records import ModelVersion
from tests.processes.deaths import expect_death
from tests.processes.dying_run import run_until_death

COLLECTION = {
    "prompts": {"n": 12},
    "completions": {"max_new_tokens": 12, "batch_size": 16},
    "comparisons": {"pairs_per_prompt": 6},
}


def config(stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"ops": {stage: {"config": values} for stage, values in stages.items()}}


def kill(
    project: Any,
    moment: str,
    job: str,
    day: str = "",
    stages: dict[str, dict[str, Any]] | None = None,
) -> None:
    """Start the job in another process, which dies at that moment."""
    expect_death(run_until_death, project.environ, moment, job, day, config(stages or {}))


def frames(project: Any) -> dict[str, bytes]:
    folder = Path(project.settings.frames)
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.suffix in (".parquet", ".json")
    }


def without_first_stages(frames: dict[str, bytes]) -> dict[str, bytes]:
    """Pairs and the annotator model are made before the reward model, whatever becomes of it."""
    first = ("annotator_model", "preference_pairs")
    return {name: content for name, content in frames.items() if not name.startswith(first)}


def same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    moving = [c for c in ("latency_ms", "received_at") if c in ours.columns]
    pd.testing.assert_frame_equal(ours.drop(columns=moving), theirs.drop(columns=moving))


@pytest.fixture(scope="module")
def unbroken(grown: Any, branch: Callable[..., Any]) -> Any:
    """A fourth day as it is without a kill."""
    project = branch(grown)
    project.run("collection", project.day(3), config=config(COLLECTION))
    project.vote(project.day(3))
    project.run("feedback", project.day(3))
    return project


def test_day_killed_while_completing_is_equal_after_a_rerun(
    unbroken: Any, grown: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(grown), grown.day(3)
    before, n = frames(project), project.store.comparisons.count()
    kill(project, "completing", "collection", day, COLLECTION)
    after = frames(project)
    # the stage before is done, the killed one left nothing
    assert set(after) - set(before) == {f"prompts/{day}.parquet"}
    assert project.store.comparisons.count() == n
    project.run("collection", day, config=config(COLLECTION))
    for stage in ("prompts", "completions", "comparisons"):
        same(project.files.read_frame(stage, day), unbroken.files.read_frame(stage, day))
    project.run("collection", day, config=config(COLLECTION))
    assert project.store.comparisons.count() == n + len(
        project.files.read_frame("comparisons", day)
    )


def test_killed_feedback_keeps_the_last_good_day(unbroken: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(unbroken), unbroken.day(3)
    before, events = frames(project), len(project.store.events.for_model(project.judge))
    kill(project, "writing the drift report", "feedback", day)
    assert frames(project) == before
    project.run("feedback", day)
    assert frames(project) == before
    assert len(project.store.events.for_model(project.judge)) == events


def test_kill_while_registering_leaves_one_version_and_the_champion(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    champion, before = project.judge, frames(project)
    kill(project, "registering", "learning")
    assert [m.label for m in project.registry.list_versions("reward_model")] == [champion]
    assert project.judge == champion
    assert without_first_stages(frames(project)) == without_first_stages(before)
    project.champions.judge().p_chosen(project.files.read_frame("preference_pairs").head(3))
    project.materialise(["preference_pairs", "annotator_model", "reward_model"])
    assert len(project.registry.list_versions("reward_model")) == 2
    assert project.files.read_record("reward_model", ModelVersion).parent == champion
