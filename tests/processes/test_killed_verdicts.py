"""kill -9 between the steps by which the gate carries out a verdict: the next start ends them."""

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.improve.gate_decisions import conclude
from rlhf_pipeline.improve.gate_sessions import advance, find_running
from rlhf_pipeline.improve.releases import Releases
from tests.pipeline.test_gate_asks_people import register_candidate
from tests.processes.deaths import expect_death
from tests.processes.dying_verdict import MOMENTS, conclude_until_death
from tests.unit.improve.test_gate_sessions import PEOPLE, begin, vote_all

CHAMPION = "demo.policy@1"


@pytest.fixture(scope="module")
def decided(make_project: Callable[..., Any]) -> Any:
    """People's votes have decided for the candidate, and nothing is carried out."""
    project = make_project(annotators="human", completion_backend="template")
    begin(project.store, registered=register_candidate(project), max_votes=60)
    for number in range(4):
        now = project.store.database.clock.now()
        if advance(project.store, CHAMPION, now).verdict == "better":
            break
        vote_all(project.store, PEOPLE, 1.0, number)
    assert find_running(project.store).verdict == "better"
    return project


@pytest.mark.parametrize("moment", MOMENTS)
def test_next_start_ends_what_a_kill_left(
    decided: Any, branch: Callable[..., Any], moment: str
) -> None:
    project = branch(decided)
    expect_death(conclude_until_death, project.environ, moment)
    champions, store = project.champions, project.store
    assert champions.policy().version == champions.registry.get("policy", "champion").version
    decision = conclude(champions, project.settings)
    assert decision is not None
    assert decision.promoted
    assert conclude(champions, project.settings) is None
    assert champions.policy().version == champions.registry.get("policy", "champion").version == 2
    assert [promotion.version for promotion in store.promotions.history("demo.policy")] == [1, 2]
    assert [gate.candidate for gate in store.gates.all()] == ["demo.policy@2"]
    assert store.gate_sessions.latest().state == "decided"
    assert store.cards.remaining_work().n_open == 0
    ends, _ = store.audit.page(AuditFilter(action="gate_session.decided"))
    assert len(ends) == 1
    store.audit.verify()


def test_a_verdict_is_not_carried_out_again_after_a_roll_back(
    decided: Any, branch: Callable[..., Any]
) -> None:
    project = branch(decided)
    moment = "before the session is closed"
    expect_death(conclude_until_death, project.environ, moment)
    releases = Releases(project.champions, project.settings)
    releases.roll_back("demo.policy", reason="rude", actor="ann")
    conclude(project.champions, project.settings)
    assert project.champions.policy().version == 1
    assert project.store.gate_sessions.latest().state == "decided"
