"""The day's report: rows for every space, and one rule for the whole."""

import json
from datetime import date

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import DRIFT_REPORTS, check_frame
from rlhf_pipeline.core.records import DriftEvent, Verdict
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.report import (
    DriftParams,
    DriftSignals,
    data_drift_report,
    drift_report,
    overall_verdict,
)
from rlhf_pipeline.watch.drift.words import hash_words

MODEL, DAY = "demo.reward_model@1", "2026-01-05"
PASSED = [{"name": "slope", "passed": True, "value": 1.0, "threshold": 1.0}]
FAILED = [
    {"name": "slope", "passed": False, "value": 0.2, "threshold": 1.0},
    {"name": "ece_lower_bound", "passed": False, "value": 0.2, "threshold": 0.05},
]


def window(seed: int, n: int = 100, *, length: float = 200, error: float = 0.25) -> Window:
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "comparison_id": [f"c{i:04d}" for i in range(n)],
            "prompt_id": [f"p{i}" for i in range(n)],
            "prompt_length": rng.poisson(40, size=n),
            "completion_length": rng.poisson(length, size=n),
            "p": rng.beta(3, 3, size=n),
            "error": (np.arange(n) < error * n).astype(float),
            "n_votes": 1,
            "embedding_row": np.arange(n),
            "score": rng.normal(size=n),
            "prompt_words": [hash_words(f"q{i % 7} what") for i in range(n)],
            "completion_words": [hash_words(f"a{i % 9} it is") for i in range(n)],
        }
    )
    mixes = {
        "choices": {"a": n // 2, "b": n // 2},
        "strengths": {"2": n},
        "annotators": {"ann": n},
        "prompt_mix": {"factual": n},
    }
    return Window(MODEL, rows, rng.normal(size=(n, 16)).astype(np.float32), mixes=mixes)


def event(detector: str, seq: int, day: str = DAY, model: str = MODEL) -> DriftEvent:
    return DriftEvent(
        kind="drift",
        model_version=model,
        detector=detector,
        params_hash="h",
        stream="errors",
        seq=seq,
        day=date.fromisoformat(day),
        change_seq=seq - 50,
        evidence={"error_after": 0.5},
    )


def report(current: Window | None = None, **more) -> pd.DataFrame:
    signals = {"calibration_tests": PASSED}
    signals |= {k: more.pop(k) for k in [*more] if k in DriftSignals.__dataclass_fields__}
    more = {"reference": window(1), "model_version": MODEL} | more
    return drift_report(
        DAY,
        current=window(2) if current is None else current,
        signals=DriftSignals(**signals),
        **more,
    )


def test_a_quiet_day_is_stable_in_every_space():
    rows = report()
    assert set(rows["verdict"]) == {Verdict.STABLE}
    assert set(rows["space"]) == {
        "errors",
        "calibration",
        "prompt_text",
        "completion_text",
        "prompt_length",
        "completion_length",
        "embeddings",
        "scores",
        "confidence",
        "choices",
        "strengths",
        "annotators",
        "prompt_mix",
        "overall",
    }
    chosen = DriftParams().chosen()
    assert rows.loc[rows["space"] == "errors", "detector"].tolist() == [*chosen, "error_rate"]
    pd.testing.assert_frame_equal(check_frame(rows, DRIFT_REPORTS), rows)


def test_three_detectors_make_the_day_drift_and_two_a_warning():
    events = [event("ddm", 900), event("adwin", 950), event("hddm_a", 960)]
    assert overall_verdict(report(events=events[:2])) == Verdict.WARNING
    three = report(events=events)
    assert overall_verdict(three) == Verdict.DRIFT
    overall = json.loads(three.loc[three["space"] == "overall", "evidence"].iloc[0])
    assert overall["says_drift"] == ["adwin", "ddm", "hddm_a"]
    fired = json.loads(three.loc[three["detector"] == "ddm", "evidence"].iloc[0])["events"]
    assert fired[0]["seq"] == 900
    assert fired[0]["change_seq"] == 850


def test_calibration_and_the_error_rate_of_a_day_alone_are_warnings() -> None:
    worse = {"current": window(2, error=0.6), "calibration_tests": FAILED}
    assert overall_verdict(report(calibration_tests=FAILED)) == Verdict.WARNING
    assert overall_verdict(report(**worse, events=[event("ddm", 900)])) == Verdict.WARNING
    assert overall_verdict(report(window(2, error=0.6))) == Verdict.WARNING


def test_the_sequential_test_makes_the_day_drift_alone() -> None:
    assert overall_verdict(report(events=[event("sequential_test", 900)])) == Verdict.DRIFT


def test_missing_data_is_insufficient_never_stable():
    nothing = drift_report(DAY)
    assert set(nothing["verdict"]) == {Verdict.INSUFFICIENT}
    assert set(nothing["model_version"]) == {"none"}
    assert overall_verdict(report(window(2, 10), calibration_tests=())) == Verdict.INSUFFICIENT
    assert overall_verdict(report(reference=None)) == Verdict.INSUFFICIENT


def test_evidently_finds_the_same_shift_and_renders_html():
    data_report = data_drift_report(window(1), window(2, length=400))
    drift = {
        m["config"]["column"]: m["value"]
        for m in data_report.json["metrics"]
        if "column" in m["config"]
    }
    assert drift["completion_length"] < 1e-6
    assert drift["prompt_length"] > 0.01
    json.dumps(data_report.json, allow_nan=False)
    assert (
        "<html" in data_report.html()[:500].lower()
        or "<!doctype" in data_report.html()[:500].lower()
    )
