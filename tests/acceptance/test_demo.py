"""The story of the demo: taste changes once, one retraining answers it, the policy is better."""

from typing import Any

import pytest

from tests.acceptance.demo import (
    Demo,
    interval,
    measure,
)

pytestmark = pytest.mark.timeout(3600)

FIGURES = (
    "accuracy before the change",
    "accuracy on the day of the change",
    "accuracy after the promotion",
    "utility before the change",
    "utility after the change",
    "utility after the promotion",
    "win rate",
    "facts after",
    *(
        f"{figure} of reward model {n}"
        for n in (1, 2)
        for figure in ("accuracy", "noise ceiling", "binned gap")
    ),
)


@pytest.fixture(scope="module")
def figures(demo: Demo) -> dict[str, float]:
    return measure(demo)


def the_fire(demo: Demo) -> dict[str, Any]:
    """A detector may warn of the new policy's first day without being confirmed: a hold."""
    [decision] = [each for each in demo.decisions() if each["action"] == "fire"]
    return decision


def test_one_change_of_taste_starts_one_retraining(demo: Demo) -> None:
    decision = the_fire(demo)
    assert decision["state"] == "succeeded"
    assert decision["remedy"] == "retrain"
    likeliest = max(decision["evidence"]["causes"]["causes"], key=lambda each: each["probability"])
    assert (likeliest["name"], likeliest["probability"] > 0.95) == ("taste", True)


def test_the_change_is_dated_at_its_first_votes(demo: Demo) -> None:
    decision = the_fire(demo)
    votes = demo.frame("votes")
    first = votes.loc[votes["day"] == demo.change, "seq"].min()
    assert abs(decision["change_seq"] - first) <= 50


def test_drift_is_reported_on_the_day_of_the_change(demo: Demo) -> None:
    report = demo.frame("drift_report")
    verdicts = report[report["space"] == "overall"].set_index("day")["verdict"]
    assert verdicts[demo.change] == "drift"
    assert "drift" not in set(verdicts[verdicts.index < demo.change])


def test_the_candidate_is_promoted(demo: Demo) -> None:
    gate = demo.record("gate")
    assert gate["promoted"]
    assert all(check["passed"] for check in gate["checks"])
    [champion] = [
        line for line in demo.home.run("status").splitlines() if line.startswith("champion")
    ]
    assert "policy demo.policy@2" in champion


def test_true_utility_after_is_no_lower_than_before(demo: Demo) -> None:
    utility = demo.utility()
    assert utility["after the change"] < utility["before the change"]
    assert utility["after the promotion"] >= utility["before the change"]


def test_candidate_keeps_its_facts(demo: Demo, figures: dict[str, float]) -> None:
    [facts] = [c for c in demo.record("gate")["checks"] if c["name"] == "checkable_answers"]
    assert facts["passed"]
    assert figures["facts after"] >= figures["facts before"] - 0.05


def test_reward_models_reach_the_noise_ceiling(figures: dict[str, float]) -> None:
    for n in (1, 2):
        ceiling = figures[f"noise ceiling of reward model {n}"]
        assert abs(figures[f"accuracy of reward model {n}"] - ceiling) < 0.15
    before = figures["accuracy before the change"]
    assert figures["accuracy on the day of the change"] < before - 0.4
    assert figures["accuracy after the promotion"] > before - 0.2


def test_figures_lie_in_the_intervals_of_five_seeds(figures: dict[str, float]) -> None:
    outside = {
        name: (figures[name], interval(name))
        for name in FIGURES
        if not interval(name)[0] <= figures[name] <= interval(name)[1]
    }
    assert not outside


def test_every_vote_of_the_demo_is_exported_and_in_the_chain(demo: Demo) -> None:
    votes = demo.frame("votes")
    exported = demo.home.export("votes")
    assert len(exported) == len(votes) == votes["vote_id"].nunique()
    assert "error" not in demo.home.run("audit", "verify").lower()
