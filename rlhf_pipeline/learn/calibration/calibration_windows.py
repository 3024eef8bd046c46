"""Calibration over time: ECE and Brier of served predictions, window by window.

A window is a day with the days before it. It uses only votes of these days, so that a late vote
for an old day changes only the windows that contain it. Neighbouring windows share most of their
votes, so they are not independent. After a promotion a window holds votes predicted by two models;
its figures are of the newer one alone, so that they say nothing of a model that no longer predicts;
the noise ceiling is of the votes on the comparisons that it predicted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import CalibrationMetrics, Interval, Record
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.feedback.votes.counting import standing_votes
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.learn.calibration.summary import calibration_metrics


class CalibrationWindow(Record):
    """Calibration over one window of days. A figure is None if there are too few votes for an
    interval.
    """

    day: str = Field(description="last UTC day of the window, YYYY-MM-DD")
    first_day: str = Field(description="first UTC day of the window")
    n_votes: int = Field(
        description="votes for a or b whose comparison was predicted before the vote"
    )
    n_comparisons: int
    n_prompts: int = Field(
        description="prompts of these comparisons; the bootstrap resamples prompts"
    )
    reward_models: tuple[str, ...] = Field(
        description="label of the model that predicted; of windows stored earlier, several"
    )
    last_seq: int | None = Field(description="highest vote seq in the window")
    accuracy: Interval | None = Field(description="share of votes that were predicted correctly")
    noise_ceiling: Interval | None = Field(
        description="noise ceiling of the window's votes, shown beside the accuracy"
    )
    ece: Interval | None = Field(
        description="expected calibration error minus the bias that noise adds"
    )
    brier: Interval | None = Field(
        description="mean squared distance of probability and vote; always predicting 0.5 gives "
        "0.25"
    )
    slope: Interval | None = Field(
        default=None, description="calibration slope: 1 is calibrated, below 1 overconfident"
    )
    rests_on: str = Field(
        default="",
        description="hash of the input frames; a window with another hash is outdated",
    )


JUDGED_COLUMNS = ("seq", "day", "p", "outcome", "error", "group", "reward_model")
FIGURES = {
    "accuracy": "share of the votes predicted right",
    "noise_ceiling": "of the votes on the same comparisons",
    "ece": "ECE",
    "brier": "Brier score; 0.25 is a coin",
}
UNIT = {"low": 0.0, "high": 1.0}

CALIBRATION_OVER_TIME = FrameSchema(
    "calibration_over_time",
    {
        "day": text("last UTC day of the window, YYYY-MM-DD"),
        "first_day": text("its first"),
        "n_votes": integer("votes on comparisons that were predicted before", low=0),
        "n_comparisons": integer("comparisons of these", low=0),
        "n_prompts": integer("prompts of these, over which intervals are drawn", low=0),
        "reward_models": text(
            "reward model that predicted; of windows stored earlier, several", nullable=True
        ),
        "last_seq": integer("highest seq of these votes", nullable=True, low=1),
        **{
            f"{name}{end}": number(
                f"{what}{suffix}; missing where there are too few", nullable=True, **UNIT
            )
            for name, what in FIGURES.items()
            for end, suffix in (("", ""), ("_low", ", lower end"), ("_high", ", upper end"))
        },
        "ceiling_basis": text(
            "what the noise ceiling is from where votes do not overlap",
            nullable=True,
            values=("repeats",),
        ),
    },
    key=("day",),
)


class OverTimeParams(Parameters):
    """How long a window is, and how many are shown."""

    window_days: int = Field(
        default=7,
        ge=1,
        le=366,
        description="Length of a window in days; 1 = single days",
    )
    n_windows: int = Field(
        default=28,
        ge=1,
        le=366,
        description="Windows in a day's report: one ends on that day, one on each day before",
    )


def report_days(day: str, first: str, params: OverTimeParams | None = None) -> list[str]:
    """The last days of the windows in the report of `day`; none is before `first`, the first day
    with records.
    """
    n = (params or OverTimeParams()).n_windows
    return [
        report_day
        for report_day in (_days_earlier(day, back) for back in reversed(range(n)))
        if report_day >= first or report_day == day
    ]


def days_of_window(day: str, params: OverTimeParams | None = None) -> list[str]:
    """The days of the window that ends on `day`, its own last."""
    return [
        _days_earlier(day, back)
        for back in reversed(range((params or OverTimeParams()).window_days))
    ]


def calibration_over_time(
    predictions: pd.DataFrame,
    votes: pd.DataFrame,
    days: Sequence[str],
    params: OverTimeParams | None = None,
) -> tuple[CalibrationWindow, ...]:
    """One window per day of `days`, in their order; without a judgement n_votes is 0 and there are
    no figures.

    `predictions`: columns seq, day, p, outcome, error, group (comparison) and reward_model, as
    `reflection.served_predictions` gives them: p was predicted before the vote; day is that of the
    vote. `votes`: VOTES of the same days, for the noise ceiling and for the prompts, which
    intervals resample. Below MIN_PAIRS comparisons there is no figure. Rows may come in any order.
    Raises FrameError for missing columns, InvalidScores for an invalid p or outcome.
    """
    return tuple(
        _measure_window(window) for window in iter_windows(predictions, votes, days, params)
    )


@dataclass(frozen=True)
class WindowVotes:
    """The votes of a window that count: of its current model, none of them superseded.

    `predictions` has the columns JUDGED_COLUMNS and `prompt`; `cast` are all VOTES of the window on
    the same comparisons, for the noise ceiling.
    """

    day: str
    first_day: str
    predictions: pd.DataFrame
    cast: pd.DataFrame


def iter_windows(
    predictions: pd.DataFrame,
    votes: pd.DataFrame,
    days: Sequence[str],
    params: OverTimeParams | None = None,
) -> Iterator[WindowVotes]:
    """The windows that end on `days`, in their order; arguments and errors as
    `calibration_over_time`.
    """
    params = params or OverTimeParams()
    missing = [name for name in JUDGED_COLUMNS if name not in predictions]
    if missing:
        raise FrameError(
            f"Judged predictions have no columns {missing}. Pass the result of "
            f"`served_predictions`."
        )
    rows = predictions.sort_values(["day", "seq"])
    cast = check_frame(votes, VOTES).sort_values(["day", "seq"])
    prompts = dict(zip(cast["comparison_id"], cast["prompt_id"], strict=True))
    rows = rows.assign(prompt=rows["group"].map(prompts).fillna(rows["group"]))
    for day in days:
        first_day = days_of_window(day, params)[0]
        yield _select_current(
            WindowVotes(
                day, first_day, *(_select_days(frame, first_day, day) for frame in (rows, cast))
            )
        )


def over_time_frame(windows: Sequence[CalibrationWindow]) -> pd.DataFrame:
    """CALIBRATION_OVER_TIME of these windows, a row for each."""
    if not windows:
        return CALIBRATION_OVER_TIME.empty_frame()
    return check_frame(
        pd.DataFrame([_row(window) for window in windows])[list(CALIBRATION_OVER_TIME.columns)],
        CALIBRATION_OVER_TIME,
    )


def new_models(windows: Sequence[CalibrationWindow]) -> list[tuple[int, str]]:
    """(Number of the window, label) of each reward model first judged after the first window."""
    labels = set(windows[0].reward_models) if windows else set()
    models: list[tuple[int, str]] = []
    for i, window in enumerate(windows):
        new = [label for label in window.reward_models if label not in labels]
        models += [(i, new[-1])] if new else []
        labels.update(new)
    return models


def _select_current(window: WindowVotes) -> WindowVotes:
    # A vote that was superseded within the window does not count.
    predictions = window.predictions[
        window.predictions["seq"].isin(standing_votes(window.cast)["seq"])
    ]
    current = predictions[predictions["reward_model"] == _find_current_model(predictions)]
    # Other votes may be of another taste: a ceiling of theirs says nothing of this accuracy.
    is_beside = window.cast["comparison_id"].isin(current["group"])
    return replace(window, predictions=current, cast=window.cast[is_beside])


def _measure_window(window: WindowVotes) -> CalibrationWindow:
    rows = window.predictions
    n_comparisons = int(rows["group"].nunique())
    metrics = measure_votes(rows) if n_comparisons >= MIN_PAIRS else None
    return CalibrationWindow(
        day=window.day,
        first_day=window.first_day,
        n_votes=len(rows),
        n_comparisons=n_comparisons,
        n_prompts=int(rows["prompt"].nunique()),
        reward_models=tuple(rows.sort_values("seq")["reward_model"].drop_duplicates()),
        last_seq=None if rows.empty else int(rows["seq"].max()),
        accuracy=None if metrics is None else metrics.accuracy,
        noise_ceiling=None if metrics is None else noise_ceiling_or_repeats(window.cast),
        ece=None if metrics is None else metrics.ece,
        brier=None if metrics is None else metrics.brier,
        slope=None if metrics is None else metrics.slope,
    )


def measure_votes(predictions: pd.DataFrame) -> CalibrationMetrics:
    """Of the `predictions` of a window; the bootstrap draws the votes of a prompt together."""
    return calibration_metrics(
        predictions["p"].to_numpy(),
        predictions["outcome"].to_numpy(),
        right=1 - predictions["error"].to_numpy(),
        groups=predictions["prompt"].to_numpy(),
    )


def _find_current_model(rows: pd.DataFrame) -> str | None:
    """Of the newest day with votes, the model that predicted most of them; of two with as many, the
    one whose vote came last.
    """
    newest = rows[rows["day"] == rows["day"].max()].sort_values("seq")
    counts = newest.groupby("reward_model")["seq"].agg(["size", "max"])
    return None if counts.empty else str(counts.sort_values(["size", "max"]).index[-1])


def _select_days(sorted_by_day: pd.DataFrame, first_day: str, last_day: str) -> pd.DataFrame:
    days = sorted_by_day["day"].to_numpy(dtype=object)
    begin = np.searchsorted(days, first_day, "left")
    end = np.searchsorted(days, last_day, "right")
    return sorted_by_day.iloc[begin:end]


def _row(window: CalibrationWindow) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(window, name)
        for name in CALIBRATION_OVER_TIME.columns
        if hasattr(window, name)
    }
    for name in FIGURES:
        figure: Interval | None = getattr(window, name)
        ends = (None, None, None) if figure is None else (figure.value, figure.low, figure.high)
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    basis = None if window.noise_ceiling is None else window.noise_ceiling.basis
    return row | {"reward_models": ", ".join(window.reward_models) or None, "ceiling_basis": basis}


def _days_earlier(day: str, n_days: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=n_days)).isoformat()
