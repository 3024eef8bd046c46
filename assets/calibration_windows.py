"""Calibration windows for drift reports: reads stored windows, recomputes those whose inputs
changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.calibration import OverTimeParams, calibration_over_time
from rlhf_pipeline.calibration.calibration_windows import days_of_window, report_days
from rlhf_pipeline.calibration.window_groups import group_votes, windows_by_group
from rlhf_pipeline.drift.reference import LEFT_OUT
from rlhf_pipeline.errors import ArtefactError, FrameError
from rlhf_pipeline.records import CalibrationWindow, GroupCalibration, content_hash
from rlhf_pipeline.reflection import served_predictions
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import Quarantines

INPUT_STAGES = ("reflection_log", "votes")
DAYS_PER_CHUNK = 28  # windows computed together, so that years of days fit into memory
CODE_VERSION = (
    5  # increase it when the same votes give other figures; stored windows are then recomputed
)


@dataclass(frozen=True)
class WindowSeries:
    """Calibration windows by day, the new ones among them, the days shown in each report, and the
    groups of each report's own window; or why there are none (`left_out`).
    """

    windows: Mapping[str, CalibrationWindow]
    shown: Mapping[str, Sequence[str]]
    new: Sequence[CalibrationWindow] = ()
    groups: Mapping[str, Sequence[GroupCalibration]] = field(default_factory=dict)
    left_out: str | None = None

    def windows_of(self, day: str) -> Sequence[CalibrationWindow] | str:
        return self.left_out or [self.windows[one] for one in self.shown[day]]


def load_series(
    days: Sequence[str],
    files: Artefacts,
    params: OverTimeParams,
    quarantines: Quarantines,
    store: Store,
) -> WindowSeries:
    """The windows for the reports of `days`, from the stored reflection log and votes of each day,
    without quarantined votes. Groups of comparisons and annotators are those of the store.

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
        made, groups = _measure(missing, days, files, params, quarantines, store)
    except (ArtefactError, FrameError) as cause:
        return WindowSeries({}, {}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    new = [window.model_copy(update={"rests_on": hashes[window.day]}) for window in made]
    return WindowSeries(kept | {window.day: window for window in new}, shown, new, groups)


def measure_single_days(
    days: Sequence[str], reflections: pd.DataFrame, votes: pd.DataFrame
) -> Sequence[CalibrationWindow]:
    """A window of one day for each of `days`, from their REFLECTION_LOG and VOTES."""
    judged = _served_by_day(reflections)
    return calibration_over_time(judged, votes, days, OverTimeParams(window_days=1))


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


def _measure(
    missing: Sequence[str],
    grouped: Sequence[str],
    files: Artefacts,
    params: OverTimeParams,
    quarantines: Quarantines,
    store: Store,
) -> tuple[list[CalibrationWindow], dict[str, Sequence[GroupCalibration]]]:
    """The windows of `missing` days, and the groups of the windows of `grouped` days. Groups are
    not stored with their window: a tag of an annotator changes them without a change of frames.
    """
    windows: list[CalibrationWindow] = []
    groups: dict[str, Sequence[GroupCalibration]] = {}
    days = sorted({*missing, *grouped})
    for some, judged, votes in _iter_inputs(days, files, params, quarantines):
        windows += calibration_over_time(
            judged, votes, [day for day in some if day in missing], params
        )
        named = group_votes(
            votes,
            store.comparisons.groups_of(votes["comparison_id"].unique().tolist()),
            store.annotator_groups.all(),
        )
        groups |= windows_by_group(
            judged, votes, named, [day for day in some if day in grouped], params
        )
    return windows, groups


def _iter_inputs(
    days: Sequence[str], files: Artefacts, params: OverTimeParams, quarantines: Quarantines
) -> Iterator[tuple[Sequence[str], pd.DataFrame, pd.DataFrame]]:
    """Days, and the served predictions and votes of their windows."""
    for start in range(0, len(days), DAYS_PER_CHUNK):
        some = days[start : start + DAYS_PER_CHUNK]
        inside = sorted({one for day in some for one in days_of_window(day, params)})
        reflections, votes = (
            quarantines.drop(files.read_days(stage, inside)) for stage in INPUT_STAGES
        )
        yield some, _served_by_day(reflections), votes


def _served_by_day(reflections: pd.DataFrame) -> pd.DataFrame:
    """`served_predictions` per day: a vote repeated on a later day is in the logs of both days and
    counts in each.
    """
    parts = [served_predictions(part) for _, part in reflections.groupby("day")]
    return pd.concat(parts, ignore_index=True) if parts else served_predictions(reflections)
