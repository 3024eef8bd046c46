"""What detectors read of the votes: no repeats, no hasty sessions, no weekly rhythm."""

from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.drift.haste import find_hasty_votes
from rlhf_pipeline.drift.rhythm import expected_excess
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.drift.vote_stream import (
    READ,
    REPEATED,
    StreamParams,
    prepare_stream,
)
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_votes

MODEL = "world.reward_model@1"


def test_later_votes_on_a_comparison_are_left_out() -> None:
    votes = draw_votes(VoteWorld(n_votes=900, votes_per_comparison=3, repeats=0), 1)
    prepared = prepare_stream(votes, StreamParams(max_hasty_share=0))
    assert prepared["left_out"].tolist() == [READ, REPEATED, REPEATED] * 300
    everything = prepare_stream(votes, StreamParams(max_hasty_share=0, first_votes_only=False))
    assert set(everything["left_out"]) == {READ}


def test_a_hurried_session_is_left_out_and_ordinary_votes_are_not() -> None:
    leaked, lost = [], []
    for seed in range(5):
        votes = draw_votes(VoteWorld(n_bursts=10, repeats=0), seed)
        took = votes["duration_s"].to_numpy()
        hasty = find_hasty_votes(votes["annotator_id"].to_numpy(dtype=object), took, 0.34).left_out
        calm = draw_votes(VoteWorld(repeats=0), seed)
        in_session = took < calm["duration_s"].to_numpy() / 2
        leaked.append(np.mean(~hasty[in_session]))
        lost.append(np.mean(hasty[~in_session]))
    assert np.mean(leaked) < 0.15
    assert np.mean(lost) < 0.04


def test_everybody_in_a_hurry_is_a_change() -> None:
    votes = draw_votes(VoteWorld(n_votes=2000), 3)
    took = votes["duration_s"].to_numpy() / np.where(np.arange(2000) < 1000, 1, 3)
    ids = votes["annotator_id"].to_numpy(dtype=object)
    marked = find_hasty_votes(ids, took, 0.34)
    assert marked.left_out[1100:].mean() < 0.02
    assert marked.hasty[1100:1300].mean() > 0.8


def weekly(n_weeks: int, per_day: int, rise: float, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = [date(2026, 1, 5) + timedelta(i) for i in range(7 * n_weeks)]
    day = np.repeat([d.isoformat() for d in days], per_day)
    rate = np.repeat([0.25 + rise * (d.weekday() >= 5) for d in days], per_day)
    return pd.DataFrame({"day": day, "error": (rng.random(len(day)) < rate).astype(float)})


def test_the_rhythm_of_the_week_is_learnt_from_earlier_weeks() -> None:
    votes = weekly(10, 150, 0.1)
    excess = expected_excess(votes, 3)
    weekday = pd.to_datetime(votes["day"]).dt.weekday
    assert not excess[: 21 * 150].any()
    late = np.arange(len(votes)) > 56 * 150
    difference = excess[late & (weekday >= 5)].mean() - excess[late & (weekday < 5)].mean()
    assert difference == pytest.approx(0.1, abs=0.03)
    before = expected_excess(votes.iloc[: 40 * 150], 3)
    assert (excess[: 40 * 150] == before).all(), "later votes change nothing"


def test_a_late_vote_changes_no_row_that_was_read() -> None:
    votes = weekly(8, 150, 0.1)
    late = votes.iloc[10 * 150 : 11 * 150].assign(error=1.0)
    both = pd.concat([votes, late], ignore_index=True)
    assert (expected_excess(both, 3)[: len(votes)] == expected_excess(votes, 3)).all()


def test_detectors_read_the_errors_of_a_usual_weekend_as_those_of_a_weekday() -> None:
    votes = weekly(12, 300, 0.15).assign(seq=np.arange(1, 12 * 7 * 300 + 1))
    is_weekend = (pd.to_datetime(votes["day"]).dt.weekday >= 5) & (votes["seq"] > 28 * 300)
    is_weekday = ~is_weekend & (votes["seq"] > 28 * 300)
    for weeks, difference in ((3, 0.0), (0, 0.15)):
        read = prepare_stream(votes, StreamParams(rhythm_weeks=weeks))["error"]
        found = read[is_weekend].mean() - read[is_weekday].mean()
        assert found == pytest.approx(difference, abs=0.03)


def test_one_category_is_not_tested_beside_the_whole() -> None:
    votes = draw_votes(VoteWorld(n_votes=500), 1).assign(category="all")
    assert "category_rises" not in scan(votes, model_version=MODEL).states


def test_an_event_in_a_category_names_it() -> None:
    votes = draw_votes(VoteWorld(n_votes=4000, repeats=0), 6)
    turned = (votes["seq"] > 2500) & (votes["category"] == "category 4")
    votes.loc[turned, "error"] = 1.0
    streams = [e.stream for e in scan(votes, model_version=MODEL).events]
    assert streams[0] == "category:category 4"


def test_scans_in_steps_give_the_events_of_one_scan() -> None:
    votes = draw_votes(VoteWorld(n_votes=3000), 7)
    votes.loc[votes["seq"] > 2000, "error"] = 1.0
    whole = scan(votes, model_version=MODEL).events
    states, events = {}, []
    for until in range(250, 3001, 250):
        found = scan(votes[votes["seq"] <= until], states, model_version=MODEL)
        states, events = found.states, [*events, *found.events]
    assert [e.event_id for e in events] == [e.event_id for e in whole]
    assert len(whole) >= 2
