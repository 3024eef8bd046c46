"""A known world lived through by the real assets and sensors: the same events as the library's."""

from collections.abc import Callable
from typing import Any

from driver.laboratory import LivedWorld
from driver.runner import Runner
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
