"""Bad input at the level of assets: a named error with cause and cure or a clean empty result, the
last good file stays, a re-run completes.
"""

import errno
import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice, ModelVersion, NewVote
from rlhf_pipeline.generate.prompts import GENERATORS
from rlhf_pipeline.generate.prompts.base import Draft


@pytest.fixture(scope="module")
def small(make_project: Callable[..., Any]) -> Any:
    """Two collected days without votes, by the template backend: no model is needed to break
    things.
    """
    project = make_project(completion_backend="template")
    for index in range(2):
        project.collect(project.day(index), n=12)
    return project


def vote(project: Any, day: str, choices: Sequence[Choice], *, n_annotators: int = 3) -> None:
    """Every comparison of the day gets a vote of each annotator; choices in turn."""
    morning = datetime.combine(date.fromisoformat(day), time(9), UTC)
    ids = project.files.read_frame("comparisons", day)["comparison_id"]
    votes = [
        NewVote(
            comparison_id=c,
            annotator_id=f"person-{a}",
            annotator_kind=AnnotatorKind.HUMAN,
            choice=choices[(n + a) % len(choices)],
            voted_at=morning,
            origin="page",
            idempotency_key=f"{c}-{a}",
        )
        for n, c in enumerate(ids)
        for a in range(n_annotators)
    ]
    project.store.votes.cast_many(votes)


def frames(project: Any) -> dict[str, bytes]:
    """All of them but pairs and the annotator model's, which are made of votes that no reward model
    can be fitted to.
    """
    folder = Path(project.settings.frames)
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not {"annotator_model", "preference_pairs"} & {p.stem, p.parent.name}
    }


def refused(project: Any, job: str, *messages: str, day: str | None = None, **config: Any) -> None:
    """The job fails with an error that says all of `said`, and no file has changed."""
    before = frames(project)
    result = project.run(
        job, day, ok=False, config={"ops": {k: {"config": v} for k, v in config.items()}}
    )
    message = project.errors(result)
    for part in messages:
        assert part in message, message
    assert frames(project) == before


def test_nan_scores_stop_the_day_before_anything_is_published(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    project = branch(grown)
    champion = project.registry.get("reward_model", "champion")
    broken = tmp_path / "broken"
    broken.mkdir()
    for source in project.registry.fetch_folder(champion, project.settings.cache).iterdir():
        (broken / source.name).write_bytes(source.read_bytes())
    weights = next(broken.glob("*.safetensors"))
    save_file(
        {
            k: np.full_like(v, np.nan) if v.dtype.kind == "f" else v
            for k, v in load_file(weights).items()
        },
        weights,
    )
    with project.registry.run("a broken import") as run:
        version = project.registry.register("reward_model", broken, run=run)
    project.champions.promote("reward_model", version, reason="broken", actor="test")
    n, before = project.store.comparisons.count(), frames(project)
    result = project.collect(project.day(3), n=12, ok=False)
    message = project.errors(result)
    assert "comparisons: " in message
    assert "InvalidScores" in message or "ModelError" in message, message
    assert project.store.comparisons.count() == n
    assert {k: v for k, v in frames(project).items() if k in before} == before
    project.champions.promote("reward_model", champion, reason="whole", actor="test")
    project.collect(project.day(3), n=12)
    assert project.store.comparisons.count() > n


def test_deleted_partition_is_named_and_can_be_remade(
    small: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(small), small.day(1)
    Path(project.files.path("completions", day)).unlink()
    before = frames(project)
    result = project.materialise(["comparisons"], day, ok=False)
    assert "MissingPartition" in project.errors(result)
    assert f"completions of {day}" in project.errors(result)
    assert frames(project) == before
    project.materialise(
        ["completions"], day, config={"ops": {"completions": {"config": {"max_new_tokens": 20}}}}
    )
    project.materialise(
        ["comparisons"], day, config={"ops": {"comparisons": {"config": {"pairs_per_prompt": 6}}}}
    )
    pd.testing.assert_frame_equal(
        project.files.read_frame("comparisons", day), small.files.read_frame("comparisons", day)
    )


@pytest.fixture
def with_own_policy(make_project: Callable[..., Any]) -> Any:
    """A project whose registered files may be destroyed."""
    project = make_project()
    project.collect(project.day(0), n=3)
    return project


def test_champion_with_damaged_files_completes_nothing(with_own_policy: Any) -> None:
    project = with_own_policy
    folder = project.champions.policy_folder()
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    refused(
        project,
        "collection",
        "ModelHashMismatch",
        "demo.policy@1",
        day=project.day(0),
        prompts={"n": 3},
    )
    hidden = folder.rename(folder.with_name("hidden"))
    refused(
        project,
        "collection",
        "ModelNotFound",
        "demo.policy@1",
        day=project.day(0),
        prompts={"n": 3},
    )
    hidden.rename(folder)
    weights.write_bytes(good)
    project.collect(project.day(0), n=3)


def test_full_disk_keeps_the_last_day_and_a_rerun_completes(
    small: Any, branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, day = branch(small), small.day(0)
    vote(project, day, [Choice.A, Choice.B])
    project.run("feedback", day)
    before = frames(project)
    fsync = os.fsync

    def full(fd: int) -> None:
        if "/reflection_log/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    result = project.run("feedback", day, ok=False)
    message = project.errors(result)
    for part in (
        "ArtefactError",
        "reflection_log",
        "No space left",
        "Free some space",
        "the previous file is untouched",
    ):
        assert part in message
    assert frames(project) == before
    monkeypatch.undo()
    project.run("feedback", day)
    assert frames(project).keys() == before.keys()


class BrokenGenerator:
    """A third party's generator that says everything twice and knows a difficulty of its own."""

    name = "broken"

    def __init__(self, **handed: Any) -> None: ...

    def generate(self, params: Any, *, seed: int, selection: Any) -> None:
        selection.offer_all(Draft(f"Say {i // 2}.", "creative", "absurd") for i in range(100))


def test_a_broken_frame_fails_its_check_and_blocks_the_run(
    small: Any, branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, day = branch(small), small.day(0)
    before = frames(project)
    monkeypatch.setitem(GENERATORS._shipped, "freeform", BrokenGenerator)
    result = project.collect(day, ok=False, prompts={"n": 12, "source": "freeform"})
    check = dg.AssetCheckKey(dg.AssetKey("prompts"), "columns_and_keys")
    evaluations = {e.asset_check_key: e for e in result.get_asset_check_evaluations()}
    assert evaluations[check].passed is False
    assert evaluations[check].severity == dg.AssetCheckSeverity.ERROR
    assert "difficulty" in evaluations[check].description
    assert "prompts.difficulty: value not allowed" in project.errors(result)
    assert result.get_asset_materialization_events() == []
    assert {e.step_key for e in result.all_events if e.event_type_value == "STEP_SUCCESS"} == set()
    assert frames(project) == before
    project.collect(day, n=12)
    assert frames(project).keys() == before.keys()


def test_human_and_simulated_votes_are_not_mixed(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    vote(project, project.day(2), [Choice.A, Choice.B])
    project.run("feedback", project.day(2))
    refused(
        project,
        "learning",
        "ConfigurationError",
        "mix kinds of annotators",
        "allow_mixed_annotators",
    )
    assert project.files.read_record("reward_model", ModelVersion).version == 1
