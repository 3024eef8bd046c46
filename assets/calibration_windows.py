"""Calibration over time for the drift reports: windows that rest on unchanged votes are read, the
others made again. Knows frames by day.
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

INPUT_STAGES = ("reflection_log", "votes")
DAYS_PER_CHUNK = 28  # windows whose days are read together, so that years of them fit into memory
CODE_VERSION = (
    2  # raise it where the same votes give other figures: what is kept is made again then
)


@dataclass(frozen=True)
class WindowSeries:
    """Windows by day, those of them that were not kept yet, and which days' windows stand in whose
    report; or in words why there are none.
    """

    windows: Mapping[str, CalibrationWindow]
    shown: Mapping[str, Sequence[str]]
    new: Sequence[CalibrationWindow] = ()
    left_out: str | None = None

    def windows_of(self, day: str) -> Sequence[CalibrationWindow] | str:
        return self.left_out or [self.windows[one] for one in self.shown[day]]


def load_series(days: Sequence[str], files: Artefacts, params: OverTimeParams) -> WindowSeries:
    """The windows that stand in the reports of `days`, from the reflection log and votes of each
    day as they lie there.

    A broken file of another day is no reason to report nothing of this one: the series is left out
    then, and says why.
    """
    try:
        first = min([*files.days("reflection_log"), *days])
        shown = {day: report_days(day, first, params) for day in days}
        wanted = sorted({one for found in shown.values() for one in found})
        hashes = _input_hashes(wanted, files, params)
        kept = {
            day: window
            for day, window in files.read_windows(wanted).items()
            if window.rests_on == hashes[day]
        }
        made = list(_compute_windows([day for day in wanted if day not in kept], files, params))
    except (ArtefactError, FrameError) as cause:
        return WindowSeries({}, {}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    new = [window.model_copy(update={"rests_on": hashes[window.day]}) for window in made]
    return WindowSeries(kept | {window.day: window for window in new}, shown, new)


def _input_hashes(days: Sequence[str], files: Artefacts, params: OverTimeParams) -> dict[str, str]:
    inside = {day: days_of_window(day, params) for day in days}
    hashes = files.hash_days(
        sorted({one for found in inside.values() for one in found}), INPUT_STAGES
    )
    return {
        day: content_hash(CODE_VERSION, [hashes[one] for one in found])
        for day, found in inside.items()
    }


def _compute_windows(
    days: Sequence[str], files: Artefacts, params: OverTimeParams
) -> Iterator[CalibrationWindow]:
    for start in range(0, len(days), DAYS_PER_CHUNK):
        some = days[start : start + DAYS_PER_CHUNK]
        inside = sorted({one for day in some for one in days_of_window(day, params)})
        reflections, votes = (files.read_days(stage, inside) for stage in INPUT_STAGES)
        yield from calibration_over_time(_served_by_day(reflections), votes, some, params)


def _served_by_day(reflections: pd.DataFrame) -> pd.DataFrame:
    """A vote that was judged again on a later day is in both days' logs: each day is as it was
    served, so each by itself.
    """
    parts = [served_predictions(part) for _, part in reflections.groupby("day")]
    return pd.concat(parts, ignore_index=True) if parts else served_predictions(reflections)
