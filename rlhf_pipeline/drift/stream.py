"""Runs the chosen drift detectors over a stream of errors in vote order, resumable at any vote."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import DriftDetector, Signal, params_hash
from rlhf_pipeline.drift.choice import DetectorChoice
from rlhf_pipeline.errors import ConfigurationError, FrameError
from rlhf_pipeline.plugins import NoParams, select_params
from rlhf_pipeline.records import DriftEvent, Record, utc_now

MAX_KEPT_WARNINGS = 200  # warnings kept per detector: more than any report shows


class StreamWarning(Record):
    """The vote at which a detector began to suspect a rise; a warning triggers nothing."""

    detector: str
    seq: int
    day: date


class ScanResult(Record):
    """`events` of the votes read now, `warnings` of this and earlier scans, and `states` for the
    next scan, as plain JSON.
    """

    events: tuple[DriftEvent, ...]
    warnings: tuple[StreamWarning, ...]
    states: dict[str, dict[str, Any]]


def error_stream(reflections: pd.DataFrame, model_version: str) -> pd.DataFrame:
    """The judged predictions of one model as seq, day and error (0 or 1), in seq order; votes for
    neither side are left out.
    """
    rows = reflections[
        (reflections["reward_model"] == model_version) & reflections["is_error"].notna()
    ]
    errors = pd.DataFrame(
        {
            "seq": rows["seq"].astype("int64"),
            "day": rows["day"],
            "error": rows["is_error"].astype("int64"),
        }
    )
    return errors.sort_values("seq", ignore_index=True)


def scan(
    errors: pd.DataFrame,
    states: Mapping[str, dict[str, Any]] | None = None,
    *,
    model_version: str,
    stream: str = "errors",
    params: BaseModel | None = None,
    detected_at: datetime | None = None,
) -> ScanResult:
    """Feed the chosen detectors the errors they have not read: columns seq, day and error, in any
    row order.

    `params` holds the fields of DetectorChoice and of the detectors' `Params`; those it lacks are
    at their defaults.

    A detector skips votes up to the seq of its saved state. If that state was saved under other
    parameters, the detector drops it and starts at the first row, so pass the whole stream of the
    model version. Events up to the last vote that any detector has read are `is_replayed`, also
    those of a detector chosen later: only a new vote may start a retraining. Raises
    ConfigurationError for a state of another model or stream, FrameError for a duplicate seq,
    InvalidScores for an error outside [0, 1].
    """
    rows = _rows_in_order(errors)
    params = params or NoParams()
    at = detected_at or utc_now()
    events: list[DriftEvent] = []
    new_states: dict[str, dict[str, Any]] = {}
    read_before = max((state["last_seq"] for state in (states or {}).values()), default=0)
    for name in select_params(DetectorChoice, params).chosen():
        saved = (states or {}).get(name)
        if saved is not None and (saved["model_version"], saved["stream"]) != (
            model_version,
            stream,
        ):
            raise ConfigurationError(
                f"The saved state of {name} belongs to {saved['model_version']}/{saved['stream']}, "
                f"not {model_version}/{stream}. Pass the state of this model and stream, or none."
            )
        kind = DETECTORS[name]
        own = select_params(kind.Params, params)
        detector = kind(own)
        fingerprint = params_hash(detector)
        if saved is not None and saved["params_hash"] == fingerprint:
            detector = kind.from_state(own, saved["detector"])
            last_seq = saved["last_seq"]
            warnings = list(saved["warnings"])
        else:
            last_seq, warnings = 0, []
        for seq, day, error in rows:
            if seq <= last_seq:
                continue
            last_seq = seq
            signal = detector.update(error, seq)
            if signal is None:
                continue
            if signal.level == "warning":
                warnings.append({"seq": seq, "day": day})
            else:
                event = _make_event(detector, signal, model_version, fingerprint, stream, day, at)
                events.append(event.model_copy(update={"is_replayed": seq <= read_before}))
        new_states[name] = {
            "model_version": model_version,
            "stream": stream,
            "params_hash": fingerprint,
            "last_seq": last_seq,
            "warnings": warnings[-MAX_KEPT_WARNINGS:],
            "detector": detector.state(),
        }
    events.sort(key=lambda event: (event.seq, event.detector))
    return ScanResult(events=tuple(events), warnings=stream_warnings(new_states), states=new_states)


def stream_warnings(states: Mapping[str, dict[str, Any]]) -> tuple[StreamWarning, ...]:
    """The warnings kept in saved states, in seq order."""
    found = [
        StreamWarning(detector=name, **warning)
        for name, state in states.items()
        for warning in state["warnings"]
    ]
    return tuple(sorted(found, key=lambda w: (w.seq, w.detector)))


def _rows_in_order(errors: pd.DataFrame) -> list[tuple[int, str, Any]]:
    missing = [c for c in ("seq", "day", "error") if c not in errors.columns]
    if missing:
        raise FrameError(
            f"errors: missing columns {missing}; a stream has seq, day and error. See error_stream."
        )
    duplicate = errors["seq"].duplicated()
    if duplicate.any():
        seq = errors["seq"][duplicate].iloc[0]
        raise FrameError(
            f"errors: vote seq {seq} occurs twice. Pass one row per vote of one model version."
        )
    ordered = errors.sort_values("seq")
    days = (str(day) for day in ordered["day"])
    return list(zip(ordered["seq"].tolist(), days, ordered["error"].tolist(), strict=True))


def _make_event(
    detector: DriftDetector,
    signal: Signal,
    model_version: str,
    fingerprint: str,
    stream: str,
    day: str,
    at: datetime,
) -> DriftEvent:
    return DriftEvent(
        kind="drift",
        model_version=model_version,
        detector=detector.name,
        params_hash=fingerprint,
        stream=stream,
        seq=signal.seq,
        day=date.fromisoformat(day),
        change_seq=signal.change_seq,
        evidence={**signal.evidence, "params": detector.params.model_dump(mode="json")},
        detected_at=at,
    )
