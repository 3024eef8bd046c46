"""Decides when detectors confirm a drift: the sequential test alone, or several together."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from statistics import median_low

from pydantic import Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import DriftEvent
from rlhf_pipeline.watch.drift.frouros_detectors import FROUROS
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest


class ConfirmationParams(Parameters):
    """When the events of detectors confirm a change."""

    sequential_test_confirms: bool = Field(
        default=True,
        description="An event of the sequential test, whose false-alarm rate is known, is enough",
    )
    # With two, days that differ by chance retrain more often than their limit allows
    # (`benchmarks/bench_changes.py`).
    confirmations: int = Field(
        default=3,
        ge=0,
        le=len(FROUROS),
        description="Distinct detectors that confirm a change where the sequential test does not; "
        "1 = any detector alone, 0 = others than the sequential test only warn",
    )
    calibration_days: int = Field(
        default=3,
        ge=0,
        le=60,
        description="Days of a week with a failed calibration test after which the calibrator is "
        "fitted again, though no detector reports a rise; 0 = never",
    )
    confirmation_window: int = Field(
        default=500, ge=1, description="Votes within which they must report to confirm each other"
    )


def describe_requirement(params: ConfirmationParams) -> str:
    """Which detectors have to report a change, in words."""
    n, ways = params.confirmations, ["the sequential test"] * params.sequential_test_confirms
    if n or not ways:
        ways.append(f"{n} detector{'s' * (n != 1)} within {params.confirmation_window:,} votes")
    return " or ".join(ways)


def event_sources(events: Iterable[DriftEvent]) -> list[str]:
    """The distinct detectors of `events`, sorted; all calibration tests are one."""
    return sorted({e.detector if e.kind == "drift" else "calibration" for e in events})


def list_confirmers(events: Iterable[DriftEvent]) -> list[DriftEvent]:
    """The events that may confirm others, in vote order."""
    return sorted((e for e in events if e.kind == "drift"), key=lambda e: (e.seq, e.event_id))


def find_confirming_events(
    events: Sequence[DriftEvent], params: ConfirmationParams
) -> tuple[DriftEvent, ...]:
    """The events that confirm a change: those within `confirmation_window` votes of the first event
    of the sequential test, or else those between which most distinct detectors report, within so
    many votes, or else calibration events of `calibration_days` days of a week; () if too few
    report.

    Of spans with equally many detectors the shortest counts, then the earliest: a false alarm some
    hundred votes before a change does not confirm it, and a detector that fires again afterwards
    does not date it better.
    """
    ordered = list_confirmers(events)
    window = params.confirmation_window
    if params.sequential_test_confirms:
        for rise in ordered:
            if rise.detector == SequentialTest.name:
                return tuple(e for e in ordered if abs(e.seq - rise.seq) < window)
    spans = [
        tuple(ordered[i : j + 1])
        for i, first in enumerate(ordered)
        for j, last in enumerate(ordered[i:], start=i)
        if last.seq - first.seq < window
    ]
    best = min(
        spans,
        key=lambda span: (-len(event_sources(span)), span[-1].seq - span[0].seq, span[0].seq),
        default=(),
    )
    if 0 < params.confirmations <= len(event_sources(best)):
        return best
    return _find_lasting_miscalibration(events, params.calibration_days)


def _find_lasting_miscalibration(
    events: Sequence[DriftEvent], n_days: int
) -> tuple[DriftEvent, ...]:
    """The calibration events of the last seven days, if they are of `n_days` days and no detector
    reports a rise, which would explain them.
    """
    if not n_days or not events:
        return ()
    since = max(event.day for event in events) - timedelta(days=6)
    recent = [event for event in events if event.day >= since]
    failed = tuple(sorted(recent, key=lambda event: (event.seq, event.event_id)))
    if any(event.kind == "drift" for event in failed):
        return ()
    return failed if len({event.day for event in failed}) >= n_days else ()


def estimate_change_seq(events: Sequence[DriftEvent]) -> int | None:
    """The vote at which the sequential test dates the change, else the (lower) median of the votes
    at which the other detectors do, each by its first event; a calibration test only knows its day,
    so it goes last.
    """
    for kind in ("drift", "calibration"):
        dated: dict[str, int] = {}
        for event in sorted(events, key=lambda event: (event.seq, event.event_id)):
            if event.kind == kind and event.change_seq is not None:
                dated.setdefault(event.detector, event.change_seq)
        if dated:
            return dated.get(SequentialTest.name, median_low(dated.values()))
    return None
