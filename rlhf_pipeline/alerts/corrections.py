"""Corrects readings before rules see them: counts of quiet days, and subjects that are gone."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.metric_catalogue import METRICS

MODEL_LABELS = {"policy", "reward_model"}


def clear_idle_hours(readings: Sequence[Reading]) -> list[Reading]:
    """No time since the last vote counts while no comparison waits: nobody can vote."""
    waiting = [r.value for r in readings if r.name == "queue.open"]
    if not waiting or waiting[-1]:
        return list(readings)
    why = "no comparison waits for a vote"
    return [
        replace(r, value=0.0, detail=why) if r.name == "votes.idle_hours" else r for r in readings
    ]


def fill_counts(readings: Sequence[Reading], now: datetime) -> list[Reading]:
    """The readings, and a 0 for each later day on which nothing was counted: counts of a day, such
    as failed runs, have a point only once they are above 0.
    """
    counted: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        if reading.name in METRICS and METRICS[reading.name].is_count_of_day:
            counted.setdefault((reading.name, reading.subject), []).append(reading)
    filled = list(readings)
    for of_subject in counted.values():
        first, days = of_subject[0], {reading.day for reading in of_subject}
        for n in range(1, (now.date() - first.day).days + 1):
            day = first.day + timedelta(days=n)
            if day not in days:
                filled.append(replace(first, value=0.0, of_day=day, measured_at=now, evidence={}))
    return filled


def mark_replaced(readings: Sequence[Reading]) -> list[Reading]:
    """The readings; those of a model are gone once the same metric has one of a later model."""
    newest: dict[str, Reading] = {}
    own: dict[tuple[str, str], Reading] = {}
    for reading in sorted(readings, key=_age):
        if reading.labels.keys() & MODEL_LABELS:
            newest[reading.name] = own[reading.name, reading.subject] = reading
    return [
        replace(reading, gone=f"replaced by {newest[reading.name].subject}")
        if (last := own.get((reading.name, reading.subject))) is not None
        and _age(last) < _age(newest[reading.name])
        else reading
        for reading in readings
    ]


def mark_stopped(readings: Sequence[Reading], running: Collection[str]) -> list[Reading]:
    """The readings; the lag of a sensor that does not run any more is gone."""
    why = "the daemon no longer runs this sensor"
    return [
        replace(reading, gone=why)
        if reading.name == "sensors.lag_seconds" and reading.labels.get("sensor") not in running
        else reading
        for reading in readings
    ]


def _age(reading: Reading) -> tuple[date, datetime]:
    return reading.day, reading.measured_at
