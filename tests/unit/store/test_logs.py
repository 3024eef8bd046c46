"""Promotions, gates, calibrations, heartbeats and the completion cache."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    GateCheck,
    GateDecision,
    Interval,
    Promotion,
    ReliabilityBin,
)
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON

POLICY = "demo.policy"


class TickingClock:
    """One minute later at every look."""

    def __init__(self) -> None:
        self.time = NOON

    def now(self) -> datetime:
        self.time += timedelta(minutes=1)
        return self.time


@pytest.fixture
def ticking(url: str) -> Iterator[Store]:
    with Store.open(url, clock=TickingClock()) as store:
        store.migrate()
        yield store


def promotion(version: int, hours: int = 0, previous: int | None = None) -> Promotion:
    return Promotion(
        model_name=POLICY,
        version=version,
        previous_version=previous,
        data_seq=None,
        reason="better",
        actor="gate",
        promoted_at=NOON + timedelta(hours=hours),
    )


def report(reward_model: str = "demo.reward_model@1", value: float = 0.1) -> CalibrationReport:
    interval = Interval(value=value, low=0.0, high=0.2, n=50)
    metrics = CalibrationMetrics(
        n=50,
        accuracy=interval,
        binned_gap=interval,
        brier=interval,
        log_loss=interval,
        ece=interval,
        slope=None,
    )
    bins = (
        ReliabilityBin(
            low=0,
            high=1,
            n=50,
            mean_confidence=0.7,
            accuracy=0.6,
            accuracy_low=0.5,
            accuracy_high=0.7,
        ),
    )
    return CalibrationReport(
        reward_model=reward_model,
        method="temperature",
        params={"temperature": 1.5},
        raw=metrics,
        calibrated=metrics,
        candidates={"none": 0.7},
        raw_bins=bins,
        data_hash="d",
        n_fit=100,
        fitted_at=NOON,
    )


def test_the_champion_is_the_latest_promotion(store):
    assert store.promotions.champion(POLICY) is None
    assert store.promotions.record(promotion(1))
    assert store.promotions.record(promotion(2, 1, 1))
    assert store.promotions.record(promotion(1, 2, 2))  # rolled back
    assert not store.promotions.record(promotion(1, 3, 1))  # already champion
    assert store.promotions.champion(POLICY) == promotion(1, 2, 2)
    assert [p.version for p in store.promotions.history(POLICY)] == [1, 2, 1]
    assert store.promotions.champion("demo.reward_model") is None
    assert store.audit.verify() == 3


def test_gate_decisions_are_numbered_and_kept(store):
    decision = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=False,
        checks=(GateCheck(name="win_rate", passed=False, reason="0.48 is not above 0.5"),),
        decided_at=NOON,
    )
    assert [store.gates.record(decision), store.gates.record(decision)] == [1, 2]
    assert store.gates.all() == [decision, decision]


def test_calibrations_are_numbered_per_reward_model(store):
    assert store.calibrations.latest_serving("demo.reward_model@1") is None
    versions = [
        store.calibrations.add(report(), {"temperature": 1.5}),
        store.calibrations.add(report(value=0.05), {"temperature": 1.25}),
        store.calibrations.add(report("demo.reward_model@2"), {}),
    ]
    assert versions == [1, 2, 1]
    latest, calibrator = store.calibrations.latest_serving("demo.reward_model@1")
    assert (latest, calibrator) == (
        report(value=0.05).model_copy(update={"calibrator_version": 2}),
        {"temperature": 1.25},
    )
    assert [(r.reward_model, r.calibrator_version) for r in store.calibrations.log()] == [
        ("demo.reward_model@1", 1),
        ("demo.reward_model@1", 2),
        ("demo.reward_model@2", 1),
    ]


def test_refused_calibrator_is_logged_and_the_previous_stays(store):
    for value, may_serve in ((0.1, True), (0.05, False), (0.04, False)):
        store.calibrations.add(
            report(value=value).model_copy(update={"may_serve": may_serve}), {"temperature": value}
        )
    latest, calibrator = store.calibrations.latest_serving("demo.reward_model@1")
    assert (latest.calibrator_version, calibrator) == (1, {"temperature": 0.1})
    assert [r.may_serve for r in store.calibrations.log()] == [True, False, False]
    store.calibrations.add(
        report("demo.reward_model@2").model_copy(update={"may_serve": False}), {}
    )
    assert store.calibrations.latest_serving("demo.reward_model@2") is None


def test_nan_is_never_stored(store):
    with pytest.raises(
        InvalidScores, match=r"Calibration report of demo\.reward_model@1 holds NaN"
    ):
        store.calibrations.add(report(value=float("nan")), {})
    with pytest.raises(InvalidScores, match="Calibrator of"):
        store.calibrations.add(report(), {"temperature": float("inf")})
    assert store.calibrations.log() == []


def test_silent_runs_are_pruned(ticking):
    ticking.heartbeats.beat("run-1", pid=1, host="h", job="retraining")
    ticking.heartbeats.beat("run-2", pid=2, host="h", job="feedback")
    ticking.heartbeats.beat("run-1", pid=3, host="h", job="retraining")
    assert ticking.heartbeats.prune(NOON + timedelta(minutes=3)) == 1
    assert ticking.heartbeats.get("run-2") is None
    beat = ticking.heartbeats.get("run-1")
    assert (beat.pid, beat.started_at, beat.at) == (
        3,
        NOON + timedelta(minutes=1),
        NOON + timedelta(minutes=3),
    )


def test_the_cache_keeps_the_first_value_of_a_key(store):
    cache = store.completions_cache
    cache.put_many({f"k{i}": f"text {i} — ü" for i in range(1200)})
    cache.put_many({"k0": "another", "new": "text"})
    texts = cache.get_many([*(f"k{i}" for i in range(1200)), "new", "unknown", "new"])
    assert len(texts) == 1201
    assert (texts["k0"], texts["k1199"], texts["new"]) == ("text 0 — ü", "text 1199 — ü", "text")
    assert cache.get_many([]) == {}
