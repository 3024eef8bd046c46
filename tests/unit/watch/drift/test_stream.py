"""Scanning the votes on a model: events, what is new, quarantines, bad input."""

import json
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import FrameError, InvalidScores
from rlhf_pipeline.feedback.votes import Quarantines
from rlhf_pipeline.watch.drift.report import DriftParams
from rlhf_pipeline.watch.drift.stream import scan

AT = datetime(2026, 1, 5, tzinfo=UTC)


def votes_frame(seed: int = 0, n_before: int = 800, n_after: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    error = np.concatenate([rng.random(n_before) < 0.25, rng.random(n_after) < 0.55]).astype(float)
    place = np.arange(len(error))
    return pd.DataFrame(
        {
            "seq": place * 2 + 11,
            "day": [f"2026-01-{1 + i // 100:02d}" for i in place],
            "annotator_id": [f"p{i % 7}" for i in place],
            "comparison_id": [f"c{i}" for i in place],
            "category": "all",
            "expected_error": 0.25,
            "error": error,
        }
    )


def held_out() -> pd.DataFrame:
    """Votes on held-out predictions, as often wrong as stated."""
    return votes_frame(seed=1, n_after=0).assign(comparison_id=lambda f: "r" + f.comparison_id)


def scanned(frame, state=None, **more):
    return scan(frame, state, model_version="demo.reward_model@1", detected_at=AT, **more)


def test_a_change_gives_events_with_their_day_and_the_beginning():
    result = scanned(votes_frame())
    assert {e.detector for e in result.events} == {"sequential_test", "ddm", "adwin", "hddm_a"}
    assert all(e.seq > 1611 and e.change_seq <= e.seq for e in result.events)
    first = next(e for e in result.events if e.detector == "sequential_test")
    assert (first.stream, first.day >= date(2026, 1, 9)) == ("errors", True)
    assert abs(first.change_seq - 1611) < 150
    assert "params" in first.evidence
    assert len({e.event_id for e in result.events}) == len(result.events)


def test_untested_probabilities_do_not_explain_a_rise():
    """A model that was never calibrated may state any chance: errors are compared with the rate of
    its first votes.
    """
    frame = votes_frame()
    frame["expected_error"] = np.where(frame.index < 800, 0.25, 0.55)
    change_seqs = [e.change_seq for e in scanned(frame).events if e.detector == "sequential_test"]
    assert change_seqs
    assert abs(change_seqs[0] - 1611) < 150
    tested = scanned(frame, reference=held_out())
    assert not [e for e in tested.events if e.detector == "sequential_test"]


def test_rise_from_the_first_vote_on_is_dated_on_the_model():
    """Some held-out votes err by chance just before it."""
    frame = votes_frame(n_before=0).assign(error=1.0)
    reference = held_out().head(108)
    reference["error"] = [0.0, 0.0, 0.0, 1.0] * 25 + [1.0] * 8
    events = scanned(frame, reference=reference).events
    assert {"ddm", "adwin"} <= {event.detector for event in events}
    assert min(event.change_seq for event in events) == 11


def test_an_event_of_one_category_names_it():
    frame = votes_frame(n_after=0, n_before=1600)
    frame["category"] = np.where(np.arange(1600) % 5 == 0, "maths", "prose")
    frame.loc[(frame["category"] == "maths") & (frame.index > 1100), "error"] = 1.0
    events = scanned(frame, reference=held_out()).events
    streams = [e.stream for e in events if e.detector == "sequential_test"]
    assert streams[0] == "category:maths"


def test_repeated_scan_finds_only_later_events():
    frame = votes_frame()
    whole = scanned(frame)
    state, new = None, []
    for end in (1, 137, 500, 803, 901, 950, 1200):
        part = scanned(frame.iloc[:end], state)
        state = json.loads(json.dumps(part.state, allow_nan=False))
        new += [e for e in part.events if not e.is_replayed]
    assert [e.event_id for e in new] == [e.event_id for e in whole.events]
    assert state == {"last_seq": int(frame["seq"].max()), "quarantines": {}}


def test_changed_parameters_replay_earlier_votes():
    frame, other = votes_frame(), DriftParams(sequential_test_limit=50)
    state = scanned(frame).state
    again = scanned(frame, state, params=other)
    assert again.events
    assert all(e.is_replayed for e in again.events)
    before = scanned(frame.iloc[:700]).state
    events = scanned(frame, before, params=other).events
    assert all(e.is_replayed == (e.seq <= before["last_seq"]) for e in events)


def test_only_the_chosen_detectors_read_the_votes():
    result = scanned(votes_frame(), params=DriftParams(detectors=["adwin", "ddm", "adwin"]))
    assert {e.detector for e in result.events} == {"ddm", "adwin"}


def test_quarantined_votes_give_no_events():
    """They err from vote 800 on; a lifted quarantine brings their events back as replayed ones."""
    frame = votes_frame(n_before=1200, n_after=0)
    spam = np.arange(1200) % 4 == 0
    frame["annotator_id"] = np.where(spam, "bob", frame["annotator_id"])
    frame.loc[(frame.index >= 800) & spam, "error"] = 1.0
    scan = scanned(frame)
    assert scan.events
    start = int(frame["seq"][800])
    without = scanned(frame, scan.state, quarantines=Quarantines({"bob": start}))
    assert without.events == ()
    assert without.n_quarantined == 100
    lifted = scanned(frame, without.state)
    assert [e.event_id for e in lifted.events] == [e.event_id for e in scan.events]
    assert all(event.is_replayed for event in lifted.events)
    begun = scanned(frame, {**scan.state, "quarantines": {}}, quarantines=Quarantines({"p1": 1500}))
    assert not any(e.is_replayed for e in begun.events if e.seq >= 1500)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"expected_error": 1.5}, InvalidScores, "outside"),
        ({"error": 0.5}, InvalidScores, "error 0.5 at vote 11"),
        ({"seq": 7}, FrameError, "seq 7 occurs twice"),
    ],
)
def test_votes_that_cannot_be_read_are_refused(changes, error, words):
    with pytest.raises(error, match=words):
        scanned(votes_frame().assign(**changes))
    with pytest.raises(FrameError, match="category"):
        scanned(votes_frame().drop(columns="category"))
