"""A known world lived through by the real assets and sensors: the same events as the library's."""

from collections.abc import Callable
from typing import Any

from driver.laboratory import LivedWorld
from driver.runner import Runner
from rlhf_pipeline.drift.causes import list_causes
from rlhf_pipeline.retraining.triggers import replay
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld


def test_assets_and_library_notice_the_same_change_of_a_known_world(
    make_project: Callable[..., Any],
) -> None:
    world = VoteWorld(
        n_votes=900,
        votes_per_day=150,
        weekend_rise=0.05,
        changes=(Change(cause="taste", at=500, size=0.3),),
    )
    project = make_project(completion_backend="template", annotators="human")
    runner = Runner(project.settings, project.defs, project.instance, project.store)
    lived = LivedWorld.open(runner, world, seed=1)
    decision = lived.live()
    change, remedy, events = lived.claims(decision)
    assert decision is not None
    assert change.is_right, change
    assert remedy.truth == "retrain"
    assert remedy.claim == f"{decision.remedy} ({decision.action})"
    assert events.is_right, (lived.stored_events(), events)
    assert lived.stored_events()
    assert decision.decided_at.date().isoformat() == project.day(3)
    read = project.store.detectors.errors_after(None)
    drawn = lived.votes[lived.votes["seq"] <= read["seq"].max()]
    for column in ("seq", "day", "error", "comparison_id", "category", "annotator_id", "hour"):
        assert read[column].tolist() == drawn[column].tolist(), column


def test_an_unclear_cause_is_examined_again_with_the_votes_of_the_next_day(
    make_project: Callable[..., Any],
) -> None:
    careless = Change(cause="carelessness", at=600, size=0.4, is_fast=False)
    world = VoteWorld(n_votes=1050, votes_per_day=150, n_annotators=20, changes=(careless,))
    project = make_project(completion_backend="template", annotators="human")
    runner = Runner(project.settings, project.defs, project.instance, project.store)
    decision = LivedWorld.open(runner, world, seed=23).live()
    assert decision is not None
    assert decision.remedy == "quarantine"
    waiting = project.store.decisions.all()[-2]
    assert waiting.remedy is None
    assert waiting.reasons[-1].startswith("cause not clear yet (")
    assert [replay(one).reasons for one in (waiting, decision)] == [
        waiting.reasons,
        decision.reasons,
    ]
    examined = [
        [causes.until_seq for causes in list_causes(event)]
        for event in project.store.events.for_model(f"{project.settings.reward_model}@1")
        if "later_causes" in event.evidence
    ]
    assert [750, 900] in examined
