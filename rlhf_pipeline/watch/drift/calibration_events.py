"""Turns a day's failed calibration tests into events for the retraining trigger."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.records import DriftEvent, content_hash, content_id, utc_now


def calibration_events(
    day_rows: pd.DataFrame,
    tests: Sequence[Mapping[str, Any]],
    *,
    model_version: str,
    read_before: int = 0,
    detected_at: datetime | None = None,
) -> list[DriftEvent]:
    """One event per failed test of {name, passed, value, threshold}, at the highest vote seq of the
    day's reflection rows.

    The change is dated at the first judged vote of the day, because a test covers a whole day. A
    test with `passed` None had too little data and gives no event. Events up to vote `read_before`
    are replayed. Raises InvalidScores for a failed test without judged rows.
    """
    failed = [test for test in tests if test["passed"] is not None and not test["passed"]]
    if not failed:
        return []
    model_rows = day_rows[
        (day_rows["reward_model"] == model_version) & day_rows["is_error"].notna()
    ]
    if model_rows.empty:
        raise InvalidScores(
            f"Calibration test {failed[0]['name']} failed for {model_version}, but no row of the "
            "day is judged. Give the rows it was computed on."
        )
    first, last = int(model_rows["seq"].min()), int(model_rows["seq"].max())
    return [
        DriftEvent(
            kind="calibration",
            model_version=model_version,
            detector=str(test["name"]),
            params_hash=content_id("calibration", test["name"], test["threshold"]),
            stream="calibration",
            seq=last,
            day=date.fromisoformat(str(model_rows["day"].iloc[0])),
            change_seq=first,
            evidence={
                "value": test["value"],
                "threshold": test["threshold"],
                "n_votes": len(model_rows),
                "first_seq": first,
            },
            detected_at=detected_at or utc_now(),
            is_replayed=last <= read_before,
        )
        for test in failed
    ]


def next_test_state(
    state: Mapping[str, Any] | None, thresholds: BaseModel, last_seq: int
) -> dict[str, Any]:
    """The state after votes up to `last_seq` were tested against `thresholds`.

    Its `read_before` is the last vote that was tested against earlier thresholds: events up to
    there are replayed.
    """
    fingerprint = content_hash(thresholds.model_dump(mode="json"))
    if state is None:
        return {"params_hash": fingerprint, "last_seq": last_seq, "read_before": 0}
    same = state["params_hash"] == fingerprint
    return {
        "params_hash": fingerprint,
        "last_seq": max(last_seq, state["last_seq"]),
        "read_before": state["read_before"] if same else state["last_seq"],
    }
