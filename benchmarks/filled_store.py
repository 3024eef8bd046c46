"""A store in which every list and page has rows, at the size that is asked for. Prints nothing; see
bench_pages.
"""

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.bench_store import FIRST, VOTES_PER_COMPARISON
from benchmarks.filled_loop import fill_loop
from benchmarks.web_server import RLHF, ROOT, open_store, server_environment
from rlhf_pipeline.core.frames import PREDICTIONS, check_frame
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import CalibrationReport, Interval, NewFeedback, utc_now
from rlhf_pipeline.learn.calibration import calibration_log, calibration_metrics, reliability_table
from rlhf_pipeline.store import Store

MODEL = "bench.reward_model@1"
CALIBRATIONS = 365  # one a day for a year
VOTES_PER_FEEDBACK = 100
DAYS_OF_POINTS, DAYS_OF_A_MODEL = 400, 20
ROWS_PER_CHUNK = 5_000  # comparisons whose days are read


def fill(url: str, home: Path, files: tuple[Path, Path], n_votes: int) -> None:
    """Import the files as an operator does, fit the annotator model, import a calibration log; then
    what no command brings: predictions, as a replay writes them, feedback and work."""
    home.mkdir(parents=True, exist_ok=True)
    for kind, file in zip(("comparisons", "votes"), files, strict=True):
        n = n_votes if kind == "votes" else max(1, n_votes // VOTES_PER_COMPARISON)
        call = ("import", "preferences", str(file), "--yes", "--no-replay")
        output = _run_rlhf(url, home, *call)
        if f": {n:,} imported" not in output:
            raise SystemExit(f"rlhf import preferences {file}: {output}")
    _run_rlhf(url, home, "votes", "annotators", "--publish")
    log = home / "calibration_log.json"
    log.write_text(json.dumps(calibration_log(list(_make_calibrations()))), encoding="utf-8")
    _run_rlhf(url, home, "import", "calibration-log", str(log))
    with open_store(url) as store:
        ids = store.comparisons.find_offerable_ids()
        _predict(store, ids)
        for n in range(max(4, n_votes // VOTES_PER_FEEDBACK)):
            store.feedback.add(_make_feedback(n), created_by="bench")
        store.cards.offer(ids, overlap=1)
        store.metric_points.put(list(_make_points()))
        fill_loop(store, str(home / "frames"))


def _make_points() -> Iterator[MetricPoint]:
    """Figures of 400 days, by 20 models one after the other."""
    now = utc_now()
    spaces = ("overall", "errors", "calibration", *(f"space_{n}" for n in range(12)))
    for n in range(DAYS_OF_POINTS):
        day = now.date() - timedelta(days=DAYS_OF_POINTS - 1 - n)
        model = {"reward_model": f"bench.reward_model@{1 + n // DAYS_OF_A_MODEL}"}
        for name, value in (
            ("model.accuracy", 0.7),
            ("model.accuracy_ceiling", 0.8),
            ("model.ece", 0.05),
            ("model.calibration_slope", 0.9),
        ):
            interval = Interval(value=value, low=value - 0.03, high=value + 0.03, n=500)
            yield MetricPoint.of_interval(day, name, interval, now, model)
        for space in spaces:
            verdict = {"labels": {"space": space}, "value": float(n % 40 == 0)}
            yield MetricPoint(day=day, name="drift.verdict", n=100, measured_at=now, **verdict)


def _run_rlhf(url: str, home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [RLHF, *arguments],
        env=server_environment(url, home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"rlhf {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


def _make_calibrations() -> Iterator[CalibrationReport]:
    """Reports of models of another home."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.02, 0.98, 400)
    right = (rng.random(400) < p).astype(np.float64)
    measured, bins = calibration_metrics(p, right), reliability_table(p, right)
    for n in range(CALIBRATIONS):
        yield CalibrationReport(
            reward_model=f"earlier.reward_model@{n // 7 + 1}",
            calibrator_version=n % 7 + 1,
            method="temperature",
            params={"temperature": 1 + n / 100},
            raw=measured,
            calibrated=measured,
            candidates={"none": 0.6, "temperature": 0.5},
            raw_bins=bins,
            calibrated_bins=bins,
            noise_ceiling=measured.accuracy,
            data_hash=f"{n:064x}",
            n_fit=400,
            fitted_at=FIRST + timedelta(days=n),
        )


def _predict(store: Store, ids: list[str]) -> None:
    """Of every comparison, by a model that has seen no vote."""
    rng = np.random.default_rng(4)
    for start in range(0, len(ids), ROWS_PER_CHUNK):
        comparisons = store.comparisons.with_ids(ids[start : start + ROWS_PER_CHUNK])
        margin = rng.normal(0, 1.5, len(comparisons))
        rows = {
            "day": comparisons["day"],
            "comparison_id": comparisons["comparison_id"],
            "reward_model": MODEL,
            "calibrator": "temperature@1",
            "data_hash": "bench",
            "features_hash": "bench",
            "score_a": margin,
            "score_b": 0.0,
            "p_raw": 1 / (1 + np.exp(-margin)),
            "p_calibrated": 1 / (1 + np.exp(-margin / 2)),
            "predicted_at": utc_now(),
        }
        n_written = store.predictions.replay(
            check_frame(pd.DataFrame(rows), PREDICTIONS), data_seq=0
        ).n_written
        if n_written != len(comparisons):
            raise SystemExit(f"{n_written} of {len(comparisons)} predictions were written")


def _make_feedback(n: int) -> NewFeedback:
    kind, content = (
        ("thumbs", {"value": 1})
        if n % 2
        else ("detailed", {"text": "It answers, but at three times the length that was asked for."})
    )
    return NewFeedback(
        kind=kind,
        session_id=f"session-{n // 5}",
        turn=n % 5,
        completion_id=f"completion-{n}",
        **content,
    )
