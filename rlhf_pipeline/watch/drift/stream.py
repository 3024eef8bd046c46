"""Runs the chosen detectors over the votes on one model's predictions."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.core.errors import FrameError, InvalidScores
from rlhf_pipeline.core.plugins import NoParams, select_params
from rlhf_pipeline.core.records import DriftEvent, Record, utc_now
from rlhf_pipeline.feedback.votes import NO_QUARANTINES, Quarantines
from rlhf_pipeline.watch.drift import DETECTORS
from rlhf_pipeline.watch.drift.base import Floats, StreamVote, params_hash
from rlhf_pipeline.watch.drift.choice import DetectorChoice

ALL_VOTES, CATEGORY = "errors", "category:"  # streams of events; a category's name follows
SCAN = "scan"  # name of the saved state
# what detectors and causes read of a vote on a prediction
COLUMNS = ("annotator_id", "comparison_id", "category", "expected_error", "error")
# The chances that a model states are untested where it has no votes on held-out predictions: its
# errors are compared with the rate of its first votes, whatever chance it states for each.
FIRST_VOTES, UNTESTED_ERROR = 200, 0.25
UNTESTED_ODDS = float(np.log(UNTESTED_ERROR / (1 - UNTESTED_ERROR)))
SUREST = 0.001  # lowest stated chance of an error: log odds of 0 and 1 are infinite


class ScanResult(Record):
    """Events of all votes on the model, the state for the next scan, as plain JSON, and how many
    votes a quarantine left out.
    """

    events: tuple[DriftEvent, ...]
    state: dict[str, Any]
    n_quarantined: int = 0


def scan(
    votes: pd.DataFrame,
    state: Mapping[str, Any] | None = None,
    *,
    model_version: str,
    reference: pd.DataFrame | None = None,
    params: BaseModel | None = None,
    quarantines: Quarantines = NO_QUARANTINES,
    detected_at: datetime | None = None,
) -> ScanResult:
    """Let the chosen detectors read all votes on the model, in any row order: COLUMNS, seq and day.

    `params` holds the fields of DetectorChoice and of the detectors' `Params`; those it lacks are
    at their defaults. `reference` holds votes on held-out predictions of the model (COLUMNS);
    without any, the model's first votes serve as its reference.

    Detectors keep no state: a scan finds the events of earlier ones again, under the same ids. An
    event up to the last vote that an earlier scan has read (`state`) is `is_replayed`, so that only
    a new vote may start a retraining, whatever parameters have changed since. What is found without
    the votes that a quarantine leaves out is new; what is found with the votes that a lifted one
    brings back is replayed. Raises FrameError for missing columns and a duplicate seq,
    InvalidScores for an error that is neither 0 nor 1 and a chance outside [0, 1].
    """
    params = params or NoParams()
    is_out = quarantines.find(votes).to_numpy() if quarantines else np.zeros(len(votes), dtype=bool)
    rows = stream_votes(votes[~is_out])
    first_seq = rows[0].seq if rows else 0
    reference_rows = [] if reference is None else reference_votes(reference)
    if not reference_rows:
        constant = [row._replace(stated=UNTESTED_ODDS) for row in rows]
        reference_rows, rows = constant[:FIRST_VOTES], constant[FIRST_VOTES:]
    replayed_until = _find_replayed(state, quarantines)
    at = detected_at or utc_now()
    days = {row.seq: row.day for row in rows}
    events = []
    for name in select_params(DetectorChoice, params).chosen():
        kind = DETECTORS[name]
        detector = kind(select_params(kind.Params, params))
        for signal in detector.find_rises(rows, reference_rows):
            events.append(
                DriftEvent(
                    kind="drift",
                    model_version=model_version,
                    detector=name,
                    params_hash=params_hash(detector),
                    stream=ALL_VOTES if signal.category is None else CATEGORY + signal.category,
                    seq=signal.seq,
                    day=date.fromisoformat(days[signal.seq]),
                    # held-out votes have no seq: a change among them shows in all votes
                    change_seq=max(signal.change_seq, first_seq),
                    evidence=signal.evidence | {"params": detector.params.model_dump(mode="json")},
                    detected_at=at,
                    is_replayed=signal.seq <= replayed_until,
                )
            )
    events.sort(key=lambda event: (event.seq, event.detector, event.stream))
    last_seq = max([int(votes["seq"].max()) if len(votes) else 0, _last_seq(state)])
    return ScanResult(
        events=tuple(events),
        state={"last_seq": last_seq, "quarantines": dict(quarantines.since)},
        n_quarantined=int(is_out.sum()),
    )


def stream_votes(votes: pd.DataFrame) -> list[StreamVote]:
    """The rows of COLUMNS, seq and day as votes, in seq order. Raises as `scan`."""
    missing = [c for c in ("seq", "day", *COLUMNS) if c not in votes.columns]
    if missing:
        raise FrameError(f"votes: missing columns {missing}. See store.detectors.errors_of.")
    duplicate = votes["seq"].duplicated()
    if duplicate.any():
        seq = votes["seq"][duplicate].iloc[0]
        raise FrameError(f"votes: seq {seq} occurs twice. Pass one row per vote on one model.")
    rows = votes.sort_values("seq")
    is_error = rows["error"].isin([0, 1])
    if not is_error.all():
        wrong = rows[~is_error].iloc[0]
        raise InvalidScores(
            f"votes: error {wrong['error']:g} at vote {wrong['seq']}; expected 1 where the "
            "prediction was wrong and 0 where it was right. Drop ties and skips."
        )
    columns = [rows["seq"].tolist(), rows["day"].astype(str).tolist()]
    columns += [rows[name].astype(str).tolist() for name in COLUMNS[:3]]
    columns += [stated_odds(rows).tolist(), rows["error"].astype(float).tolist()]
    return [StreamVote(*row) for row in zip(*columns, strict=True)]


def reference_votes(reference: pd.DataFrame) -> list[StreamVote]:
    """Votes on held-out predictions: before all others, on no day."""
    return stream_votes(reference.assign(seq=np.arange(-len(reference), 0), day=""))


def stated_odds(votes: pd.DataFrame) -> Floats:
    """The stated log odds of an error (n,). Raises InvalidScores for a chance outside [0, 1]."""
    chance = votes["expected_error"].to_numpy(dtype=float)
    if not ((chance >= 0) & (chance <= 1)).all():
        raise InvalidScores(
            "votes: expected_error holds a value outside [0, 1] or NaN; expected the chance of an "
            "error that the model states. Calibrate the model again."
        )
    clipped = np.clip(chance, SUREST, 1 - SUREST)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _last_seq(state: Mapping[str, Any] | None) -> int:
    return 0 if state is None else int(state["last_seq"])


def _find_replayed(state: Mapping[str, Any] | None, quarantines: Quarantines) -> int:
    """The last vote up to which events are replayed."""
    if state is None or state["quarantines"] == quarantines.since:
        return _last_seq(state)
    first = quarantines.first_added(state["quarantines"])
    return _last_seq(state) if first is None else first - 1
