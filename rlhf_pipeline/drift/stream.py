"""Runs the chosen drift detectors over a stream of errors in vote order, resumable at any vote."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import Signal, params_hash, require_error
from rlhf_pipeline.drift.category_rises import NAME as CATEGORY_RISES
from rlhf_pipeline.drift.category_rises import STREAM as CATEGORY_STREAM
from rlhf_pipeline.drift.category_rises import CategoryParams, CategoryRises
from rlhf_pipeline.drift.choice import DetectorChoice
from rlhf_pipeline.drift.expected_errors import stated_odds
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.rise_test import RiseTest
from rlhf_pipeline.drift.vote_stream import StreamParams, prepare_stream
from rlhf_pipeline.errors import ConfigurationError, FrameError
from rlhf_pipeline.plugins import NoParams, select_params
from rlhf_pipeline.records import DriftEvent, Record, content_id, utc_now
from rlhf_pipeline.votes import NO_QUARANTINES, Quarantines

MAX_KEPT_WARNINGS = 200  # warnings kept per detector: more than any report shows


class StreamWarning(Record):
    """The vote at which a detector began to suspect a rise; a warning triggers nothing."""

    detector: str
    seq: int
    day: date


class ScanResult(Record):
    """`events` of the votes read now, `warnings` of this and earlier scans, `states` for the next
    scan, as plain JSON, and how many votes of the whole stream were left out, by reason.
    """

    events: tuple[DriftEvent, ...]
    warnings: tuple[StreamWarning, ...]
    states: dict[str, dict[str, Any]]
    left_out: dict[str, int] = {}


def error_stream(reflections: pd.DataFrame, model_version: str) -> pd.DataFrame:
    """The judged predictions of one model as seq, day, error (0 or 1) and, where the log has them,
    comparison_id and annotator_id, in seq order; votes for neither side are left out.
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
    for name in ("comparison_id", "annotator_id"):
        if name in rows.columns:
            errors[name] = rows[name]
    return errors.sort_values("seq", ignore_index=True)


def votes_for(errors: pd.DataFrame, model_version: str) -> pd.DataFrame:
    """Each vote once: as an error of the model where it predicted the comparison, else of the model
    that predicted it first. `errors` is the stream of all models, in the order of prediction.
    """
    own = errors["reward_model"] == model_version
    others = errors[~own & ~errors["seq"].isin(errors.loc[own, "seq"])]
    rows = pd.concat([errors[own], others.drop_duplicates("seq")])
    return rows.sort_values("seq", ignore_index=True)


class Level(NamedTuple):
    """The error rate of `n` out-of-sample predictions that are no part of the stream, with the mean
    and the standard deviation of the stated log odds of an error.
    """

    n: int
    error_rate: float
    stated_odds: tuple[float, float] | None = None


def level_of(window: Window) -> Level | None:
    """The level of a reference window; None if it is empty."""
    rows = window.rows
    return measure_level(rows["error"], rows["p"]) if len(rows) else None


def measure_level(error: "pd.Series[float]", p: "pd.Series[float]") -> Level:
    """The level of predictions with their errors (0 to 1) and stated probabilities of side a."""
    odds = stated_odds(pd.DataFrame({"expected_error": np.minimum(p, 1 - p)}))
    odds = odds[np.isfinite(odds)]
    stated = (float(odds.mean()), float(odds.std())) if len(odds) else None
    return Level(len(error), float(error.mean()), stated)


def scan(
    errors: pd.DataFrame,
    states: Mapping[str, dict[str, Any]] | None = None,
    *,
    model_version: str,
    stream: str = "errors",
    params: BaseModel | None = None,
    reference: Level | None = None,
    quarantines: Quarantines = NO_QUARANTINES,
    detected_at: datetime | None = None,
) -> ScanResult:
    """Feed the chosen detectors the errors they have not read: columns seq, day and error, in any
    row order, and those that `prepare_stream` knows.

    `params` holds the fields of DetectorChoice, StreamParams, CategoryParams and of the detectors'
    `Params`; those it lacks are at their defaults. With a column `reward_model`, the votes on other
    models' predictions only teach the rhythm and the annotators' usual times. `reference` is where
    the rise test starts, so that a change at the first vote of a model is noticed.

    A detector skips votes up to the seq of its saved state. If that state was saved under other
    parameters, the detector drops it and starts at the first row, so pass the whole stream of the
    model version. Events up to the last vote that any detector has read are `is_replayed`, also
    those of a detector chosen later: only a new vote may start a retraining.

    A state saved under other quarantines is dropped too. What is found without the votes that a
    quarantine leaves out is new; what is found with the votes that a lifted one brings back is
    replayed. Raises ConfigurationError for a state of another model or stream, FrameError for a
    duplicate seq, InvalidScores for an error outside [0, 1].
    """
    params = params or NoParams()
    of_stream = select_params(StreamParams, params)
    rows = _rows_to_read(errors, model_version, of_stream, quarantines)
    at = detected_at or utc_now()
    events: list[DriftEvent] = []
    new_states: dict[str, dict[str, Any]] = {}
    read_before = max((state["last_seq"] for state in (states or {}).values()), default=0)
    has_categories = len({row.category for row in rows}) > 1
    for reader in _readers(params, reference, has_categories):
        saved = (states or {}).get(reader.name)
        if saved is not None and (saved["model_version"], saved["stream"]) != (
            model_version,
            stream,
        ):
            raise ConfigurationError(
                f"The saved state of {reader.name} belongs to "
                f"{saved['model_version']}/{saved['stream']}, not {model_version}/{stream}. Pass "
                "the state of this model and stream, or none."
            )
        fingerprint = content_id(reader.params_hash, of_stream.model_dump(mode="json"))
        last_seq, warnings, replayed_until = 0, [], read_before
        if saved is not None and saved["params_hash"] == fingerprint:
            before = saved["quarantines"]
            if before == quarantines.since:
                reader.restore(saved["detector"])
                last_seq, warnings = saved["last_seq"], list(saved["warnings"])
            elif (first := quarantines.first_added(before)) is not None:
                replayed_until = first - 1
        for row in rows:
            if row.seq <= last_seq:
                continue
            last_seq = row.seq
            signal = None if row.left_out else reader.update(row)
            if signal is None:
                continue
            if signal.level == "warning":
                warnings.append({"seq": row.seq, "day": row.day})
            else:
                events.append(
                    DriftEvent(
                        kind="drift",
                        model_version=model_version,
                        detector=reader.detector,
                        params_hash=reader.params_hash,
                        stream=reader.stream_of(row, stream),
                        seq=signal.seq,
                        day=date.fromisoformat(row.day),
                        change_seq=signal.change_seq,
                        evidence=signal.evidence | {"params": reader.shown_params},
                        detected_at=at,
                        is_replayed=row.seq <= replayed_until,
                    )
                )
        new_states[reader.name] = {
            "model_version": model_version,
            "stream": stream,
            "params_hash": fingerprint,
            "last_seq": last_seq,
            "warnings": warnings[-MAX_KEPT_WARNINGS:],
            "detector": reader.state(),
            "quarantines": dict(quarantines.since),
        }
    events.sort(key=lambda event: (event.seq, event.detector, event.stream))
    return ScanResult(
        events=tuple(events),
        warnings=stream_warnings(new_states),
        states=new_states,
        left_out=dict(Counter(row.left_out for row in rows if row.left_out)),
    )


class _Row(NamedTuple):
    seq: int
    day: str
    error: float
    category: str
    left_out: str


class _Reader:
    """A detector of DETECTORS, reading every row of the stream."""

    def __init__(self, name: str, params: BaseModel, reference: Level | None) -> None:
        self.name = self.detector = name
        self._kind = DETECTORS[name]
        self._params = select_params(self._kind.Params, params)
        self._detector = self._kind(self._params)
        self.params_hash = params_hash(self._detector)
        self.shown_params = self._params.model_dump(mode="json")
        if isinstance(self._detector, RiseTest) and reference is not None:
            self._detector.start_from(reference.n, reference.error_rate)

    def restore(self, state: dict[str, Any]) -> None:
        self._detector = self._kind.from_state(self._params, state)

    def update(self, row: _Row) -> Signal | None:
        return self._detector.update(row.error, row.seq)

    def stream_of(self, row: _Row, stream: str) -> str:
        return stream

    def state(self) -> dict[str, Any]:
        return self._detector.state()


class _CategoryReader:
    """The rise tests of all categories; their events are events of the rise test."""

    name = CATEGORY_RISES
    detector = RiseTest.name

    def __init__(self, params: BaseModel) -> None:
        self._params = select_params(CategoryParams, params)
        self._rises = CategoryRises(self._params)
        self.shown_params = self._params.model_dump(mode="json")
        self.params_hash = content_id(self.name, self.shown_params)

    def restore(self, state: dict[str, Any]) -> None:
        self._rises = CategoryRises.from_state(self._params, state)

    def update(self, row: _Row) -> Signal | None:
        return self._rises.update(row.category, row.error, row.seq)

    def stream_of(self, row: _Row, stream: str) -> str:
        return f"{CATEGORY_STREAM}{row.category}"

    def state(self) -> dict[str, Any]:
        return self._rises.state()


def _readers(
    params: BaseModel, reference: Level | None, with_categories: bool
) -> Iterator[_Reader | _CategoryReader]:
    chosen = select_params(DetectorChoice, params).chosen()
    for name in chosen:
        yield _Reader(name, params, reference)
    if with_categories and RiseTest.name in chosen:
        yield _CategoryReader(params)


def stream_warnings(states: Mapping[str, dict[str, Any]]) -> tuple[StreamWarning, ...]:
    """The warnings kept in saved states, in seq order."""
    found = [
        StreamWarning(detector=name, **warning)
        for name, state in states.items()
        for warning in state["warnings"]
    ]
    return tuple(sorted(found, key=lambda w: (w.seq, w.detector)))


def _rows_to_read(
    errors: pd.DataFrame, model_version: str, params: StreamParams, quarantines: Quarantines
) -> list[_Row]:
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
    for seq, error in zip(errors["seq"].tolist(), errors["error"].tolist(), strict=True):
        require_error(error, "drift detectors", seq)
    rows = prepare_stream(errors, params, quarantines)
    if "reward_model" in rows.columns:
        rows = rows[rows["reward_model"] == model_version]
    columns = (
        rows["seq"].tolist(),
        rows["day"].astype(str).tolist(),
        rows["error"].tolist(),
        rows["category"].tolist() if "category" in rows.columns else [""] * len(rows),
        rows["left_out"].tolist(),
    )
    return [_Row(*values) for values in zip(*columns, strict=True)]
