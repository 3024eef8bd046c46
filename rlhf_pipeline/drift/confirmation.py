"""When several detectors together are believed. Knows events; knows neither cool-down nor retraining."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.records import DriftEvent


class ConfirmationParams(BaseModel):
    """How many detectors must agree, and how near to each other."""

    model_config = ConfigDict(extra="forbid")

    confirmations: int = Field(default=2, ge=1, le=4, description="Distinct detectors that must report; all calibration tests count as one")
    confirmation_window: int = Field(default=500, ge=1, description="Votes within which they must report to confirm each other")


def source_of(event: DriftEvent) -> str:
    """What an event counts as. All calibration tests read the same rows, so together they are one witness."""
    return "calibration" if event.kind == "calibration" else event.detector


def sources(events: Iterable[DriftEvent]) -> list[str]:
    return sorted({source_of(event) for event in events})


def confirming(events: Sequence[DriftEvent], params: ConfirmationParams) -> tuple[DriftEvent, ...]:
    """The events of the latest `confirmation_window` votes in which enough distinct detectors report; () if none has."""
    ordered = sorted(events, key=lambda event: (event.seq, event.event_id))
    for last in reversed(ordered):
        span = tuple(e for e in ordered if last.seq - params.confirmation_window < e.seq <= last.seq)
        if len(sources(span)) >= params.confirmations:
            return span
    return ()


def change_seq(events: Sequence[DriftEvent]) -> int | None:
    """The earliest vote at which an event dates the change. A calibration test only knows its day, so detectors go first."""
    for kind in ("drift", "calibration"):
        dated = [event.change_seq for event in events if event.kind == kind and event.change_seq is not None]
        if dated:
            return min(dated)
    return None
