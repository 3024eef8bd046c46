"""A known world run by the real assets and sensors: the same events as the library's."""

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.core.records import ChangeCauses
from rlhf_pipeline.improve.retraining.explanation import read_inputs
from rlhf_pipeline.improve.retraining.triggers import decide
from rlhf_pipeline.simulation.laboratory import LAB_SCENARIOS
from rlhf_pipeline.simulation.laboratory.named_causes import CauseScenario
from rlhf_pipeline.simulation.laboratory.steady import SteadyScenario
from rlhf_pipeline.simulation.laboratory.trigger_runs import find_responses
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld
from tests.pipeline.world_run import WorldRun

SEED = 3


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


def test_unclear_cause_is_examined_with_next_days_votes(
    make_project: Callable[..., Any],
) -> None:
    careless = Change(cause="carelessness", at=600, size=0.4, is_fast=False)
    world = VoteWorld(n_votes=1500, votes_per_day=150, n_annotators=20, changes=(careless,))
    run = open_world(make_project, world, 21)
    store = run.runner.store
    decision = run.run_days()
    assert decision is not None
    assert (decision.action, decision.remedy) == ("hold", "quarantine")
    waiting = store.decisions.all()[-2]
    assert waiting.remedy is None
    assert waiting.reasons[-1].startswith("cause not clear yet (")
    assert [decide(*read_inputs(each)).reasons for each in (waiting, decision)] == [
        waiting.reasons,
        decision.reasons,
    ]
    until = [
        ChangeCauses.model_validate(d.evidence["causes"]).until_seq for d in (waiting, decision)
    ]
    assert until[1] - until[0] == 150


@pytest.mark.parametrize("name", ["five_in_a_row", "two_causes"])
def test_assets_find_the_events_of_the_library_in_a_scenario(
    name: str, make_project: Callable[..., Any]
) -> None:
    scenario = LAB_SCENARIOS[name]
    assert isinstance(scenario, SteadyScenario | CauseScenario)
    world = scenario.draw_world(SEED)
    # A steady one is as peculiar in two weeks as in two months.
    if not world.changes:
        world = world.model_copy(update={"n_votes": 2_000})
    run = open_world(make_project, world, SEED)
    run.run_last_day()
    assert run.stored_events() == run.library_events()
