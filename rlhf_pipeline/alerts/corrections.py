"""Corrects readings before rules see them: quiet days, what is merely late, subjects now gone."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from rlhf_pipeline.alerts.facts import LATE
from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.metric_catalogue import LAG, METRICS

IDLE, OLDEST = "votes.idle_hours", "queue.oldest_hours"
FAST_SENSORS = {"votes", "retraining"}  # tick every `sensor_seconds`, others slower
MODEL_LABELS = {"policy", "reward_model"}


def limit_idle_hours(readings: Sequence[Reading]) -> list[Reading]:
    """The readings; the time without votes lasts no longer than a comparison has waited for one,
    and exactly as long before the first vote.
    """
    oldest = {reading.day: reading for reading in readings if reading.name == OLDEST}
    voted = {reading.day for reading in readings if reading.name == IDLE}

    def limit(reading: Reading) -> Reading:
        waited = oldest[reading.day].value if reading.day in oldest else None
        if reading.value is None or waited is None or waited >= reading.value:
            return reading
        why = "" if waited else "no comparison waits for a vote"
        return replace(reading, value=waited, detail=why)

    limited = [limit(reading) if reading.name == IDLE else reading for reading in readings]
    return limited + [replace(r, name=IDLE) for day, r in oldest.items() if day not in voted]


def clear_short_lags(
    readings: Sequence[Reading], *, sensor_seconds: float, slow_sensor_seconds: float
) -> list[Reading]:
    """The readings; the lag of a sensor is 0 as long as its next tick may just be late."""

    def is_short(reading: Reading) -> bool:
        is_fast = reading.labels.get("sensor") in FAST_SENSORS
        expected_s = sensor_seconds if is_fast else slow_sensor_seconds
        return (
            reading.name == LAG and reading.value is not None and reading.value <= LATE * expected_s
        )

    return [replace(each, value=0.0) if is_short(each) else each for each in readings]


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
        if reading.name == LAG and reading.labels.get("sensor") not in running
        else reading
        for reading in readings
    ]


def _age(reading: Reading) -> tuple[date, datetime]:
    return reading.day, reading.measured_at
