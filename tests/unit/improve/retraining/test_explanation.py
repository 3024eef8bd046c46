"""Conditions shown for a decision are those of the rule, and a replay names what differs."""

from datetime import UTC, date, datetime, timedelta
from itertools import product

import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import DriftEvent, TriggerDecision, TriggerEvidence
from rlhf_pipeline.improve.retraining.explanation import (
    check_conditions,
    read_inputs,
)
from rlhf_pipeline.improve.retraining.triggers import REMEDIES, TriggerParams, decide
from tests.unclear_change import risen

NOW = datetime(2026, 1, 6, 12, tzinfo=UTC)
TWO = TriggerParams(confirmations=2)
CHAMPION, FORMER = "demo.reward_model@2", "demo.reward_model@1"


def event(detector: str, seq: int, model: str = CHAMPION) -> DriftEvent:
    return DriftEvent(
        kind="drift",
        model_version=model,
        detector=detector,
        params_hash="h",
        stream="errors",
        seq=seq,
        day=date(2026, 1, 5),
        change_seq=seq - 50,
        evidence={},
        detected_at=NOW,
    )


NEAR = (event("ddm", 1000), event("adwin", 1100))
FAR = (event("ddm", 1000), event("adwin", 1900))
STALE = (event("ddm", 1000, FORMER), event("adwin", 1100, FORMER))


def decision(events: tuple[DriftEvent, ...] = NEAR, **more: object) -> TriggerDecision:
    values = {
        "champion": CHAMPION,
        "open_events": events,
        "held_events": (),
        "last_fired_at": None,
        "n_new_votes": 1500,
        "max_seq": 2000,
        "now": NOW,
    }
    return decide(TriggerEvidence(**values | more), TWO).model_copy(update={"decision_id": 7})


def test_decision_fires_if_all_conditions_are_met() -> None:
    actions = []
    for events, champion, fired, n_new, open_one in product(
        (NEAR, FAR, STALE, NEAR[:1], ()),
        (CHAMPION, None),
        (None, NOW - timedelta(hours=24), NOW - timedelta(hours=23.9)),
        (200, 199),
        ({}, {"n_unfinished": 1}, {"n_ordered": 1}),
    ):
        hypothetical = decision(
            events,
            champion=champion,
            last_fired_at=fired,
            n_new_votes=n_new,
            **open_one,
        )
        conditions = check_conditions(read_inputs(hypothetical))
        is_unmet = any(c.is_met is False for c in conditions)
        assert is_unmet == (hypothetical.action == "hold"), hypothetical.reasons
        actions.append(hypothetical.action)
    assert set(actions) == {"fire", "hold"}


@pytest.mark.parametrize("max_seq", [1000, 1500])
@pytest.mark.parametrize("cause", REMEDIES)
@pytest.mark.parametrize("probability", [0.95, 0.7])
def test_decision_with_causes_fires_if_all_conditions_are_met(
    cause: str, probability: float, max_seq: int
) -> None:
    outcome = decision((risen(1000, CHAMPION, **{cause: probability}),), max_seq=max_seq)
    conditions = check_conditions(read_inputs(outcome))
    assert any(c.is_met is False for c in conditions) == (outcome.action == "hold"), outcome.reasons


def test_each_condition_shows_threshold_and_number() -> None:
    outcome = decision(FAR, last_fired_at=NOW - timedelta(hours=6), n_new_votes=40)
    row_of = {
        c.name: (c.required, c.actual, c.is_met) for c in check_conditions(read_inputs(outcome))
    }
    assert row_of == {
        "champion": ("a champion reward model", CHAMPION, True),
        "confirmations": (
            "the sequential test or 2 detectors within 500 votes, or calibration tests that fail "
            "on 3 days of a week",
            "2 detectors (adwin, ddm), too far apart",
            False,
        ),
        "unfinished": ("no retraining that has not ended", "0", True),
        "cool-down": ("24 h since the last retraining", "6.0 h", False),
        "new votes": ("200 since the last retraining", "40", False),
        "cause": ("a cause that needs no person", "not examined", None),
    }


@pytest.mark.parametrize("missing", ["looked_at", "params"])
def test_decision_without_inputs_is_named(missing: str) -> None:
    outcome = decision()
    bare = outcome.model_copy(
        update={"evidence": {k: v for k, v in outcome.evidence.items() if k != missing}}
    )
    with pytest.raises(ConfigurationError, match=f"Decision 7 .*'{missing}' is missing"):
        read_inputs(bare)
