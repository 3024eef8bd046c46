"""Failed calibration tests become events, once per test and latest vote."""

from datetime import date

import pandas as pd

from rlhf_pipeline.learn.calibration import CalibrationThresholds
from rlhf_pipeline.watch.drift.calibration_events import (
    calibration_events,
    next_test_state,
)

MODEL = "demo.reward_model@1"
TESTS = [
    {"name": "slope", "passed": False, "value": 0.4, "threshold": 1.0},
    {"name": "ece_lower_bound", "passed": True, "value": 0.01, "threshold": 0.05},
    {"name": "bias", "passed": None, "value": None, "threshold": 0.1},
]


def day_rows() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "day": "2026-01-03",
            "reward_model": [MODEL, MODEL, MODEL, "demo.reward_model@0"],
            "seq": pd.array([31, 27, None, 99], dtype="Int64"),
            "is_error": pd.array([True, False, None, True], dtype="boolean"),
        }
    )


def test_failed_test_is_an_event_dated_by_its_day():
    (event,) = calibration_events(day_rows(), TESTS, model_version=MODEL)
    assert (event.kind, event.detector, event.stream) == ("calibration", "slope", "calibration")
    assert (event.seq, event.change_seq, event.day) == (31, 27, date(2026, 1, 3))
    assert event.evidence == {"value": 0.4, "threshold": 1.0, "n_votes": 2, "first_seq": 27}


def test_votes_tested_before_against_other_thresholds_are_replayed():
    first = next_test_state(None, CalibrationThresholds(), 31)
    assert next_test_state(first, CalibrationThresholds(), 27)["read_before"] == 0
    changed = next_test_state(first, CalibrationThresholds(slope_rows=300), 40)
    assert (changed["read_before"], changed["last_seq"]) == (31, 40)
    again = next_test_state(changed, CalibrationThresholds(slope_rows=300), 27)
    assert again == changed
    (event,) = calibration_events(day_rows(), TESTS, model_version=MODEL, read_before=31)
    assert event.is_replayed
    (event,) = calibration_events(day_rows(), TESTS, model_version=MODEL, read_before=30)
    assert not event.is_replayed


def test_passed_tests_give_no_event():
    assert calibration_events(day_rows().iloc[:0], TESTS[1:], model_version=MODEL) == []
