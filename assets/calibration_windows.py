"""Calibration windows for drift reports: reads stored windows, recomputes those whose inputs
changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.calibration import OverTimeParams, calibration_over_time
from rlhf_pipeline.calibration.calibration_windows import days_of_window, report_days
from rlhf_pipeline.drift.reference import LEFT_OUT
from rlhf_pipeline.errors import ArtefactError, FrameError
from rlhf_pipeline.records import CalibrationWindow, content_hash
from rlhf_pipeline.reflection import served_predictions
from rlhf_pipeline.votes import Quarantines

INPUT_STAGES = ("reflection_log", "votes")
DAYS_PER_CHUNK = 28  # windows computed together, so that years of days fit into memory
CODE_VERSION = (
    4  # increase it when the same votes give other figures; stored windows are then recomputed
)


@dataclass(frozen=True)
class WindowSeries:
    """Calibration windows by day, the new ones among them, and the days shown in each report; or
    why there are none (`left_out`).
    """

    windows: Mapping[str, CalibrationWindow]
    shown: Mapping[str, Sequence[str]]
    new: Sequence[CalibrationWindow] = ()
    left_out: str | None = None

    def windows_of(self, day: str) -> Sequence[CalibrationWindow] | str:
        return self.left_out or [self.windows[one] for one in self.shown[day]]


def load_series(
    days: Sequence[str], files: Artefacts, params: OverTimeParams, quarantines: Quarantines
) -> WindowSeries:
    """The windows for the reports of `days`, from the stored reflection log and votes of each day,
    without quarantined votes.

    If a file of another day is broken, the series is left out with the reason, so that the reports
    are still made.
    """
    try:
        first = min([*files.days("reflection_log"), *days])
        shown = {day: report_days(day, first, params) for day in days}
        wanted = sorted({one for found in shown.values() for one in found})
        hashes = _input_hashes(wanted, files, params, quarantines)
        kept = {
            day: window
            for day, window in files.read_windows(wanted).items()
            if window.rests_on == hashes[day]
        }
        missing = [day for day in wanted if day not in kept]
        made = list(_compute_windows(missing, files, params, quarantines))
    except (ArtefactError, FrameError) as cause:
        return WindowSeries({}, {}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    new = [window.model_copy(update={"rests_on": hashes[window.day]}) for window in made]
    return WindowSeries(kept | {window.day: window for window in new}, shown, new)


def _input_hashes(
    days: Sequence[str], files: Artefacts, params: OverTimeParams, quarantines: Quarantines
) -> dict[str, str]:
    inside = {day: days_of_window(day, params) for day in days}
    hashes = files.hash_days(
        sorted({one for found in inside.values() for one in found}), INPUT_STAGES
    )
    # Without quarantines the hash is that of windows stored before there were any.
    left_out = [dict(quarantines.since)] if quarantines else []
    return {
        day: content_hash(CODE_VERSION, [hashes[one] for one in found], *left_out)
        for day, found in inside.items()
    }


def _compute_windows(
    days: Sequence[str], files: Artefacts, params: OverTimeParams, quarantines: Quarantines
) -> Iterator[CalibrationWindow]:
    for start in range(0, len(days), DAYS_PER_CHUNK):
        some = days[start : start + DAYS_PER_CHUNK]
        inside = sorted({one for day in some for one in days_of_window(day, params)})
        reflections, votes = (
            quarantines.drop(files.read_days(stage, inside)) for stage in INPUT_STAGES
        )
        yield from calibration_over_time(_served_by_day(reflections), votes, some, params)


def _served_by_day(reflections: pd.DataFrame) -> pd.DataFrame:
    """`served_predictions` per day: a vote repeated on a later day is in the logs of both days and
    counts in each.
    """
    parts = [served_predictions(part) for _, part in reflections.groupby("day")]
    return pd.concat(parts, ignore_index=True) if parts else served_predictions(reflections)
