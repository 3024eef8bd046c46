"""Learns how the error rate depends on the weekday and the hour, from earlier days."""

from collections.abc import Callable
from datetime import date

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.parameters import Parameters

HOURS_PER_SLOT = 3
USUAL_VOTES = 2000  # latest votes, from which the level is known within .01
LOWEST, HIGHEST = 0.01, 0.99  # error rates
WEEKEND = np.array([0, 0, 0, 0, 0, 1, 1])
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RhythmParams(Parameters):
    """How long the rhythm of the week is learnt."""

    rhythm_weeks: int = Field(
        default=3,
        ge=0,
        le=52,
        description="Weeks after which the usual error rate of a weekday and an hour is "
        "no sign of a change; 0 = never",
    )


def expected_excess(errors: pd.DataFrame, min_weeks: int, counted: Bools | None = None) -> Floats:
    """How far the error rate of each row (n,) usually lies above that of its week, by weekday and,
    where the column `hour` is known, by hour of the day.

    Rows are in vote order and have `day` (ISO date) and `error`; only those `counted` (n,), by
    default all, teach the rhythm. A row is described by the votes before it that were cast on
    earlier days: a vote that arrives days late teaches what follows, not what came before it. Zero
    until `min_weeks` weeks with votes have passed, and where days differ no more than by chance.

    Raises FrameError for a day that is no ISO date and an hour outside 0 to 23.
    """
    error: Floats = errors["error"].to_numpy(dtype=float)
    if not len(errors):
        return error
    ordinals = _day_ordinals(errors["day"])
    known_on = np.maximum.accumulate(ordinals)
    weight = np.ones(len(error)) if counted is None else counted.astype(float)
    # Ordinal 1 was a Monday.
    weekdays = (ordinals - 1) % 7
    rows = (known_on, error, weight)
    excess = _slot_excess(rows, weekdays, 7, (7, min_weeks), weekday_effects)
    if "hour" in errors.columns:
        slots = _check_hours(errors["hour"]) // HOURS_PER_SLOT
        n_slots = 24 // HOURS_PER_SLOT
        excess = excess + _slot_excess(rows, slots, n_slots, (1, 7 * min_weeks), slot_effects)
    return excess


def _day_ordinals(days: pd.Series) -> Ints:
    names, index = np.unique(days.astype(str).to_numpy(dtype=object), return_inverse=True)
    return np.array([_read_day(name) for name in names], dtype=np.int64)[index]


def _read_day(name: str) -> int:
    try:
        return date.fromisoformat(name).toordinal()
    except ValueError:
        raise FrameError(
            f"votes: day is {name!r}. Pass the ISO date of each vote, such as 2026-01-31."
        ) from None


def _check_hours(hours: pd.Series) -> Ints:
    is_hour = hours.isin(range(24)).to_numpy()
    if not is_hour.all():
        wrong = hours[~is_hour].iloc[0]
        raise FrameError(f"votes: hour is {wrong}. Pass whole hours of the day, 0 to 23.")
    return np.asarray(hours.to_numpy(), dtype=np.int64)


def _slot_excess(
    rows: tuple[Ints, Floats, Floats],
    slots: Ints,
    n_slots: int,
    needed: tuple[int, int],
    estimate: Callable[[Floats, Floats], Floats],
) -> Floats:
    """`rows` are the days on which votes became known, errors and weights; `needed`: days per
    period within which slots are compared, and the least number of periods with votes.
    """
    ordinals, error, weight = rows
    length, min_periods = needed
    first, n_days = int(ordinals.min()), int(np.ptp(ordinals)) + 1
    at = (ordinals - first, slots)
    n, wrong = np.zeros((n_days, n_slots)), np.zeros((n_days, n_slots))
    np.add.at(n, at, weight)
    np.add.at(wrong, at, weight * error)
    effects = np.zeros((n_days, n_slots))
    for day in np.unique(at[0]).tolist():
        periods = [
            counts[day % length : day].reshape(-1, length, n_slots).sum(axis=1)
            for counts in (n, wrong)
        ]
        if (periods[0].sum(axis=1) > 0).sum() >= min_periods:
            effects[day] = estimate(*periods)
    excess: Floats = effects[at]
    return excess


def weekday_effects(n: Floats, wrong: Floats) -> Floats:
    """Effect of each weekday, from votes and errors (weeks, 7): that of the weekend, which one
    number describes and few weeks show, and what single days differ from it.
    """
    of_weekend = slot_effects(n @ np.eye(2)[WEEKEND], wrong @ np.eye(2)[WEEKEND])[WEEKEND]
    effects: Floats = of_weekend + slot_effects(n, wrong - n * of_weekend)
    return effects


def slot_effects(n: Floats, wrong: Floats) -> Floats:
    """Effect of each slot on the error rate, from votes and errors (periods, slots).

    Least squares with a free rate per period, so that a change between periods is no effect of a
    slot; shrunk by the estimated variance of the effects (DerSimonian, Laird 1986), and zero where
    slots differ no more than by chance. Their mean over the votes is zero: removing them must
    not move the level that detectors have learnt.
    """
    kept = n.sum(axis=1) > 0
    n, wrong = n[kept], wrong[kept]
    none = np.zeros(n.shape[1])
    rate = wrong.sum() / max(n.sum(), 1)
    variance = rate * (1 - rate)
    degrees = int((n.sum(axis=0) > 0).sum()) - 1
    if variance == 0 or degrees < 1:
        return none
    per_period = n.sum(axis=1)
    information = np.diag(n.sum(axis=0)) - (n.T / per_period) @ n
    score = (wrong - n * (wrong.sum(axis=1) / per_period)[:, None]).sum(axis=0)
    statistic = float(score @ np.linalg.pinv(information) @ score) / variance
    if statistic <= degrees:
        return none
    between = (statistic - degrees) * variance / float(np.trace(information))
    effects: Floats = np.linalg.solve(
        information + np.eye(len(information)) * variance / between, score
    )
    effects -= n.sum(axis=0) @ effects / n.sum()
    return effects


def remove_rhythm(error: Floats, excess: Floats) -> Floats:
    """The errors as they would be without the rhythm, (n,): where errors are usually more frequent,
    each counts for less, and where they are less frequent, each correct prediction does.

    At the level of the latest earlier votes the mean is that level, and the spread is at most that
    of single errors, so a detector that expects those gives no more false alarms. `error - excess`
    has that mean too, but where errors are more frequent its spread is larger.
    """
    if not excess.any():
        return error
    ends = np.arange(len(error))
    starts = np.maximum(ends - USUAL_VOTES, 0)
    sums = np.concatenate([[0.0], np.cumsum(error - excess)])
    level = np.clip((sums[ends] - sums[starts]) / np.maximum(ends - starts, 1), LOWEST, HIGHEST)
    of_slot = np.clip(level + excess, LOWEST, HIGHEST)
    result: Floats = np.where(
        of_slot > level,
        error * level / of_slot,
        1 - (1 - error) * (1 - level) / (1 - of_slot),
    )
    return np.clip(result, 0.0, 1.0)
