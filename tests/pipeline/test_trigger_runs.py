"""A known world run by the real assets and sensors: the same events as the library's."""

from collections.abc import Callable
from typing import Any

from benchmarks.trigger_runs import find_responses
from benchmarks.vote_worlds import Change, VoteWorld
from rlhf_pipeline.application.driver.runner import Runner
from tests.pipeline.world_run import WorldRun


def open_world(make_project: Callable[..., Any], world: VoteWorld, seed: int) -> WorldRun:
    project = make_project(completion_backend="template", annotators="human")
    runner = Runner(project.settings, project.defs, project.instance, project.store)
    return WorldRun.open(runner, world, seed=seed)


def test_assets_and_library_find_the_same_change(
    make_project: Callable[..., Any],
) -> None:
    world = VoteWorld(
        n_votes=900,
        votes_per_day=150,
        weekend_rise=0.05,
        changes=(Change(cause="taste", at=470, size=0.3),),
    )
    run = open_world(make_project, world, 1)
    store = run.runner.store
    decision = run.run_days()
    assert decision is not None
    assert decision.remedy == "retrain"
    assert find_responses(world, run.votes, 1)[0].remedy == decision.remedy
    assert run.stored_events()
    assert run.stored_events() == run.library_events()
    assert decision.decided_at.date().isoformat() == run.votes["day"].unique()[3]
    read = store.detectors.errors_of(run.label)
    drawn = run.votes[run.votes["seq"] <= read["seq"].max()]
    for column in (
        "seq",
        "day",
        "error",
        "comparison_id",
        "category",
        "annotator_id",
        "shown_left",
    ):
        assert read[column].tolist() == drawn[column].tolist(), column
