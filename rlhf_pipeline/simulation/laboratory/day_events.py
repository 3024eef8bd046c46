"""Tests the calibration of each day of a world's votes as the drift report does."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import DriftEvent
from rlhf_pipeline.learn.calibration import run_calibration_tests
from rlhf_pipeline.watch.drift.calibration_events import calibration_events


def find_day_events(
    votes: pd.DataFrame, ticks: Sequence[int], model_version: str
) -> Iterator[DriftEvent]:
    """The events of the reports made at `ticks`, each on the votes of its day up to that seq."""
    seq, day = votes["seq"].to_numpy(), votes["day"].to_numpy()
    p, error = votes["p"].to_numpy(dtype=float), votes["error"].to_numpy(dtype=float)
    outcome = ((p > 0.5) != (error == 1)).astype(float)
    published = votes["published_id"].to_numpy(dtype=str)
    starts = {number: int(np.argmax(day == number)) for number in np.unique(day)}
    for end in np.unique(np.searchsorted(seq, ticks, side="right")).tolist():
        if not end:
            continue
        rows = slice(starts[day[end - 1]], end)
        try:
            tests = run_calibration_tests(p[rows], outcome[rows], published[rows])
        except NotEnoughData:
            continue
        if not all(test["passed"] for test in tests):
            of_day = votes.iloc[rows].assign(reward_model=model_version, is_error=error[rows])
            yield from calibration_events(of_day, tests, model_version=model_version)
