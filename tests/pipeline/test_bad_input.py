"""Bad input at the level of assets: a named error with cause and cure or a clean empty result, the
last good file stays, a re-run completes.
"""

import errno
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.prompts import GENERATORS
from rlhf_pipeline.prompts.base import Draft
from rlhf_pipeline.records import AnnotatorKind, Choice, ModelVersion, NewVote

FEEDBACK = ("votes", "reflection_log", "drift_report")


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


def refused(project: Any, job: str, *said: str, day: str | None = None, **config: Any) -> None:
    """The job fails with an error that says all of `said`, and no file has changed."""
    before = frames(project)
    result = project.run(
        job, day, ok=False, config={"ops": {k: {"config": v} for k, v in config.items()}}
    )
    message = project.errors(result)
    for part in said:
        assert part in message, message
    assert frames(project) == before


def test_an_empty_day_is_reported_as_insufficient(small: Any, branch: Callable[..., Any]) -> None:
    project = branch(small)
    project.run("feedback", project.day(7))
    for stage in FEEDBACK[:2]:
        assert project.files.read_frame(stage, project.day(7)).empty
    assert set(project.files.read_frame("drift_report", project.day(7))["verdict"]) == {
        "insufficient"
    }
    refused(project, "learning", "NotEnoughData", "None of 0 preference pairs", "Collect votes")


def test_a_day_without_votes_is_empty_and_its_votes_can_come_later(
    small: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(small), small.day(0)
    project.run("feedback", day)
    assert project.files.read_frame("votes", day).empty
    vote(project, day, [Choice.A, Choice.B])
    project.run("feedback", day)
    assert len(project.files.read_frame("votes", day)) == 3 * len(
        project.files.read_frame("comparisons", day)
    )


def test_ties_alone_give_no_preferences(small: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(small), small.day(0)
    vote(project, day, [Choice.TIE, Choice.BOTH_BAD])
    project.run("feedback", day)
    assert len(project.files.read_frame("votes", day)) > 0
    refused(project, "learning", "NotEnoughData", "Collect votes")
    assert project.files.read_frame("preference_pairs").empty


def test_one_annotator_has_no_ceiling_but_gives_pairs(
    small: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(small), small.day(0)
    vote(project, day, [Choice.A, Choice.B, Choice.B], n_annotators=1)
    result = project.run("feedback", day)
    made = {
        e.materialization.asset_key.to_user_string(): e.materialization.metadata
        for e in result.get_asset_materialization_events()
    }
    assert "noise_ceiling" not in made["votes"]
    assert "raw_agreement" not in made["votes"]
    project.materialise(["preference_pairs"])
    assert not project.files.read_frame("preference_pairs").empty


def test_calibration_refuses_a_single_class(small: Any, branch: Callable[..., Any]) -> None:
    """Everybody always says `a`: nothing tells a preference from a side."""
    project = branch(small)
    for index in range(2):
        vote(project, project.day(index), [Choice.A])
    project.run("feedback", project.day(0), project.day(1))
    result = project.run(
        "learning", ok=False, config={"ops": {"calibration": {"config": {"min_pairs": 10}}}}
    )
    assert "calibration: rlhf_pipeline.errors.NotEnoughData" in project.errors(result)
    assert "prefer side a; votes for both sides are needed" in project.errors(result)
    assert project.registry.get("reward_model", "champion") is None
    assert project.store.calibrations.log() == []


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
    project.registry.set_alias("reward_model", "champion", version.version)
    n, before = project.store.comparisons.count(), frames(project)
    result = project.collect(project.day(3), n=12, ok=False)
    message = project.errors(result)
    assert "comparisons: " in message
    assert "InvalidScores" in message or "ModelError" in message, message
    assert project.store.comparisons.count() == n
    assert {k: v for k, v in frames(project).items() if k in before} == before
    project.registry.set_alias("reward_model", "champion", champion.version)
    project.collect(project.day(3), n=12)
    assert project.store.comparisons.count() > n


def test_duplicates_of_a_data_set_are_asked_once(
    small: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"Say {i % 5}."}) + "\n" for i in range(20)), encoding="utf-8"
    )
    project = branch(small, prompts_file=path)
    project.run(
        "collection",
        project.day(3),
        config={"ops": {"prompts": {"config": {"n": 5, "source": "dataset"}}}},
    )
    assert sorted(project.files.read_frame("prompts", project.day(3))["text"]) == [
        f"Say {i}." for i in range(5)
    ]
    refused(
        project,
        "collection",
        "PromptError",
        "5 unused",
        day=project.day(4),
        prompts={"n": 6, "source": "dataset"},
    )


def test_a_prompt_over_100_kb_is_refused_by_its_line(
    small: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        json.dumps({"prompt": "short"}) + "\n" + json.dumps({"prompt": "x" * 100_001}) + "\n",
        encoding="utf-8",
    )
    project = branch(small, prompts_file=path)
    refused(
        project,
        "collection",
        "PromptError",
        "line 2",
        "limit is 100,000",
        day=project.day(3),
        prompts={"n": 2, "source": "dataset"},
    )


def test_a_prompt_that_fills_the_context_costs_its_own_completions_only(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "Tell me of the sea. " * 4000},
        {"prompt": "Hello there."},
        {"prompt": "What is coal?"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    project = branch(grown, prompts_file=path)
    config = {"prompts": {"n": 3, "source": "dataset"}, "completions": {"max_new_tokens": 12}}
    project.run(
        "collection", project.day(3), config={"ops": {k: {"config": v} for k, v in config.items()}}
    )
    made = project.files.read_frame("completions", project.day(3))
    asked = (
        project.files.read_frame("prompts", project.day(3)).set_index("prompt_id")["text"].str.len()
    )
    is_long = made["prompt_id"].map(asked) > 1000
    assert made.loc[is_long, "error"].str.contains("Shorten the prompt").all()
    assert made.loc[~is_long, "error"].isna().any()


def test_invalid_utf_8_is_named_by_file_and_line(
    small: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n{"prompt": "caf\xe9"}\n')
    project = branch(small, prompts_file=path)
    said = ("PromptError", "prompts.jsonl, line 2", "not UTF-8", "Save the file as UTF-8")
    refused(project, "collection", *said, day=project.day(0), prompts={"n": 2, "source": "dataset"})


def test_a_deleted_partition_is_named_and_making_it_again_mends_the_chain(
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


def test_a_damaged_partition_is_named_too(small: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(small), small.day(1)
    Path(project.files.path("completions", day)).write_bytes(b"PAR1 no longer")
    result = project.materialise(["comparisons"], day, ok=False)
    assert "ArtefactError" in project.errors(result)
    assert f"{day}.parquet" in project.errors(result)


@pytest.fixture
def with_own_policy(make_project: Callable[..., Any]) -> Any:
    """A project whose registered files may be destroyed."""
    project = make_project()
    project.collect(project.day(0), n=3)
    return project


def test_a_champion_whose_files_are_gone_or_changed_completes_nothing(with_own_policy: Any) -> None:
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


def test_a_full_disk_leaves_the_last_good_day_and_a_rerun_completes(
    small: Any, branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, day = branch(small), small.day(0)
    vote(project, day, [Choice.A, Choice.B])
    project.run("feedback", day)
    before = frames(project)
    written = os.fsync

    def full(fd: int) -> None:
        if "/reflection_log/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(fd)

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


def test_votes_of_people_and_of_a_simulation_are_not_learnt_from_together(
    grown: Any, branch: Callable[..., Any]
) -> None:
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


def test_too_few_pairs_for_a_retraining_change_nothing(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    before = len(project.registry.list_versions("policy"))
    result = project.materialise(
        ["retraining_set", "candidate_model"],
        ok=False,
        config={"ops": {"retraining_set": {"config": {"min_pairs": 5000, "max_pairs": 6000}}}},
    )
    assert "NotEnoughVotes" in project.errors(result)
    assert "Collect more votes or lower min_pairs" in project.errors(result)
    assert len(project.registry.list_versions("policy")) == before
