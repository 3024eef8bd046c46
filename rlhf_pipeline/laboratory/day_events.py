"""Tests each day of a world's votes as the drift report does: its calibration and error rate."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.calibration import run_calibration_tests
from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.calibration_events import calibration_events, error_rate_events
from rlhf_pipeline.drift.windows import WindowParams, judge_error_rate
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import DriftEvent, Verdict


def find_day_events(
    votes: pd.DataFrame, reference: Floats, ticks: Sequence[int], model_version: str
) -> Iterator[DriftEvent]:
    """The events of the reports made at `ticks`, each on the votes of its day up to that seq.

    `votes` as `mark_hasty_votes` gives them. `reference` holds the errors of the model's reference,
    one per comparison. Nothing else of the day is tested, so every other test counts as made and
    without a finding.
    """
    seq, day = votes["seq"].to_numpy(), votes["day"].to_numpy()
    p, error = votes["p"].to_numpy(dtype=float), votes["error"].to_numpy(dtype=float)
    outcome = ((p > 0.5) != (error == 1)).astype(float)
    published = votes["published_id"].to_numpy(dtype=str)
    is_read = ~votes["is_left_out"].to_numpy(dtype=bool)
    starts = {one: int(np.argmax(day == one)) for one in np.unique(day)}
    for end in np.unique(np.searchsorted(seq, ticks, side="right")).tolist():
        if not end:
            continue
        rows = slice(starts[day[end - 1]], end)
        read = np.arange(rows.start, end)[is_read[rows]]
        try:
            tests = run_calibration_tests(p[read], outcome[read], published[read])
        except NotEnoughData:
            tests = []
        verdict = judge_error_rate(reference, mean_by(published[rows], error[rows]), WindowParams())
        if all(test["passed"] for test in tests) and verdict.verdict != Verdict.DRIFT:
            continue
        of_day = votes.iloc[rows].assign(reward_model=model_version, is_error=error[rows])
        yield from calibration_events(of_day, tests, model_version=model_version)
        report = pd.DataFrame([verdict.model_dump()])
        yield from error_rate_events(of_day, report, model_version=model_version)


def average_errors(votes: pd.DataFrame) -> Floats:
    """The share of errors among the votes on each comparison."""
    return mean_by(votes["published_id"].to_numpy(dtype=str), votes["error"].to_numpy(dtype=float))


def mean_by(groups: npt.NDArray[Any], values: Floats) -> Floats:
    """The mean of each group's values."""
    _, group = np.unique(groups, return_inverse=True)
    mean: Floats = np.bincount(group, weights=values) / np.bincount(group)
    return mean
