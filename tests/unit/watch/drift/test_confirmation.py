"""Which events are believed together, and when they say the change began."""

from datetime import UTC, date, datetime

from rlhf_pipeline.core.records import DriftEvent
from rlhf_pipeline.watch.drift.confirmation import (
    ConfirmationParams,
    estimate_change_seq,
    find_confirming_events,
)

PARAMS = ConfirmationParams(confirmations=2)


def event(detector: str, seq: int, change: int | None = None, kind: str = "drift") -> DriftEvent:
    return DriftEvent(
        kind=kind,
        model_version="demo.reward_model@1",
        detector=detector,
        params_hash="p",
        stream="errors",
        seq=seq,
        day=date(2026, 1, 6),
        change_seq=change,
        evidence={},
        detected_at=datetime(2026, 1, 6, tzinfo=UTC),
    )


def test_earlier_false_alarm_does_not_confirm_a_change() -> None:
    alarm = event("hddm_a", 2947, 2946)
    change = [event("hddm_a", 3307, 3306), event("ddm", 3351, 2995), event("adwin", 3433, 3303)]
    assert find_confirming_events([alarm, *change], PARAMS) == tuple(change)


def test_repeated_signal_does_not_move_the_date() -> None:
    change = [event("hddm_a", 3307, 3306), event("adwin", 3433, 3303)]
    later = [event("hddm_a", 3700, 3650), event("adwin", 3900, 3700)]
    assert find_confirming_events([*later, *change], PARAMS) == tuple(change)


def test_the_change_is_dated_by_the_median_of_the_detectors_first_guesses() -> None:
    events = [
        event("hddm_a", 3307, 3306),
        event("ddm", 3351, 2995),
        event("adwin", 3433, 3303),
        event("hddm_a", 3576, 3528),
    ]
    assert estimate_change_seq(events) == 3303


def test_the_sequential_test_dates_a_change_where_it_reports() -> None:
    events = [event("hddm_a", 3307, 3306), event("sequential_test", 3400, 3250)]
    assert estimate_change_seq(events) == 3250
    assert estimate_change_seq(events[:1]) == 3306


def test_the_sequential_test_confirms_alone_and_others_together() -> None:
    ours, other = event("sequential_test", 3400), event("ddm", 3500)
    assert find_confirming_events([ours, other], PARAMS) == (ours, other)
    assert find_confirming_events([other], PARAMS) == ()
    assert find_confirming_events([other], ConfirmationParams(confirmations=1)) == (other,)
    together = PARAMS.model_copy(update={"sequential_test_confirms": False})
    assert find_confirming_events([ours], together) == ()
    assert find_confirming_events([ours, other], together) == (ours, other)


def test_calibration_dates_a_change_only_alone() -> None:
    calibration = event("calibration_slope_upper", 3957, 3299, kind="calibration")
    assert estimate_change_seq([calibration]) == 3299
    assert estimate_change_seq([calibration, event("adwin", 3433, 3303)]) == 3303
    assert estimate_change_seq([]) is None
