"""Scanning a stream of errors: order, resumption, events."""

import json
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.drift.report import DriftParams
from rlhf_pipeline.drift.stream import error_stream, scan
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.votes import Quarantines

AT = datetime(2026, 1, 5, tzinfo=UTC)


def errors_frame(seed: int = 0, n_before: int = 800, n_after: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    error = np.concatenate([rng.random(n_before) < 0.25, rng.random(n_after) < 0.55]).astype(float)
    seq = np.arange(len(error)) * 2 + 11
    return pd.DataFrame(
        {
            "seq": seq,
            "day": [f"2026-01-{1 + i // 400:02d}" for i in range(len(error))],
            "error": error,
        }
    )


def scanned(frame, states=None, **more):
    return scan(frame, states, model_version="demo.reward_model@1", detected_at=AT, **more)


def test_a_change_gives_one_event_per_detector_with_its_day_and_its_beginning():
    result = scanned(errors_frame())
    assert {e.detector for e in result.events} >= {"ddm", "adwin", "hddm_a"}
    assert all(
        e.seq > 1611 and e.day == date(2026, 1, 3) and 1400 < e.change_seq <= e.seq
        for e in result.events
    )
    assert all(e.evidence["error_before"] < 0.35 and "params" in e.evidence for e in result.events)
    assert len({e.event_id for e in result.events}) == len(result.events)


@pytest.mark.parametrize("seed", range(8))
def test_scanning_in_parts_gives_the_same_events_warnings_and_states(seed):
    frame = errors_frame(seed)
    whole = scanned(frame)
    states, events = None, []
    for end in (1, 137, 500, 803, 901, 1200):
        part = scanned(frame.iloc[:end], states)  # rows already read are given again
        states = json.loads(json.dumps(part.states, allow_nan=False))
        events = events + list(part.events)
    assert tuple(events) == whole.events
    assert states == json.loads(json.dumps(whole.states))
    assert part.warnings == whole.warnings


def test_a_state_of_other_parameters_is_dropped_for_that_detector_only():
    frame, other = errors_frame(), DriftParams(adwin_delta=0.01)
    states = scanned(frame).states
    again = scanned(frame, states, params=other)
    assert {e.detector for e in again.events} == {"adwin"}
    assert again.states["ddm"] == states["ddm"]


def test_votes_read_again_under_other_parameters_are_replayed():
    frame, other = errors_frame(), DriftParams(adwin_delta=0.01)
    read = frame.iloc[:-100]
    states = scanned(read).states
    last = int(read["seq"].max())
    again = scanned(frame, states, params=other)
    assert {e.detector: e.is_replayed for e in again.events if e.seq <= last} == {"adwin": True}
    late = errors_frame(n_before=1100, n_after=300)
    found = scanned(late, scanned(late.iloc[:1100]).states, params=other).events
    late_events = {e.detector: e.is_replayed for e in found if e.seq > 2211}
    assert late_events.keys() >= {"adwin", "ddm", "hddm_a"}
    assert not any(late_events.values())


def test_the_state_of_another_model_is_refused():
    states = scan(errors_frame(), model_version="demo.reward_model@2").states
    with pytest.raises(ConfigurationError, match="reward_model@2"):
        scanned(errors_frame(), states)


def test_the_error_stream_is_one_models_judged_rows_in_vote_order():
    log = pd.DataFrame(
        {
            "reward_model": ["m@1", "m@1", "m@2", "m@1"],
            "seq": pd.array([9, 4, 5, None], dtype="Int64"),
            "day": ["2026-01-01"] * 4,
            "is_error": pd.array([True, False, True, None], dtype="boolean"),
        }
    )
    stream = error_stream(log, "m@1")
    assert stream.to_dict("list") == {"seq": [4, 9], "day": ["2026-01-01"] * 2, "error": [0, 1]}


def test_only_the_chosen_detectors_read_the_stream():
    result = scanned(errors_frame(), params=DriftParams(detectors=["adwin", "ddm", "adwin"]))
    assert list(result.states) == ["ddm", "adwin"]
    assert {e.detector for e in result.events} == {"ddm", "adwin"}


def test_events_of_a_detector_chosen_later_are_replayed_up_to_the_last_read_vote():
    frame = errors_frame()
    states = scanned(frame, params=DriftParams(detectors=["ddm"])).states
    assert all(e.is_replayed for e in scanned(frame, states).events if e.detector != "ddm")
    unread = pd.DataFrame({"seq": frame["seq"] + 10_000, "day": "2026-02-01", "error": 1.0})
    new = scanned(pd.concat([frame, unread]), states).events
    assert {e.is_replayed for e in new if e.detector == "adwin"} == {True, False}


def test_without_the_votes_of_the_quarantined_nothing_is_found():
    """They err from vote 800 on; a lifted quarantine brings their events back as replayed ones."""
    frame = errors_frame(n_before=1200, n_after=0)
    spam = np.arange(1200) % 4 == 0
    frame["annotator_id"] = np.where(spam, "bob", "ana")
    frame.loc[(frame.index >= 800) & spam, "error"] = 1.0
    seen = scanned(frame)
    assert seen.events
    start = int(frame["seq"][800])
    without = scanned(frame, seen.states, quarantines=Quarantines({"bob": start}))
    assert without.events == ()
    assert without.left_out == {"quarantined": 100}
    assert {state["last_seq"] for state in without.states.values()} == {frame["seq"].max()}
    again = scanned(frame, without.states, quarantines=Quarantines({"bob": start}))
    assert again.states == without.states
    lifted = scanned(frame, without.states)
    assert [e.event_id for e in lifted.events] == [e.event_id for e in seen.events]
    assert all(event.is_replayed for event in lifted.events)
