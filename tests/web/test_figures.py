"""An annotator's figures: pace, days in a row, agreement with oneself and with known answers."""

from datetime import date, timedelta

import pytest

from rlhf_pipeline.store.vote_lists import Judgement
from rlhf_pipeline.web.figures import counted

TODAY = date(2026, 3, 10)


def judgement(
    comparison_id: str, choice: str = "a", *, days_ago: int = 1, pass_no: int = 1, gold: str | None = None, **more: object
) -> Judgement:
    values = {"stated_confidence": None, "duration_s": None, "day": TODAY - timedelta(days=days_ago)}
    return Judgement.model_validate({"comparison_id": comparison_id, "choice": choice, "pass_no": pass_no, "gold": gold, **values, **more})


def test_nothing_judged_is_nothing_told():
    told = counted([], TODAY)
    assert (told.votes_total, told.median_seconds, told.days_in_a_row, told.repeats.n, told.gold.low, told.confidence) == (
        0,
        None,
        0,
        0,
        None,
        [],
    )


def test_pace_is_of_the_newest_and_days_count_up_to_yesterday_while_today_is_empty():
    told = counted(
        [judgement(f"c{i}", days_ago=d, duration_s=s) for i, (d, s) in enumerate([(1, 4.0), (2, 8.0), (2, None), (4, 30.0)])], TODAY
    )
    assert (told.votes_today, told.votes_total, told.median_seconds, told.days_in_a_row) == (0, 4, 8.0, 2)
    told = counted([judgement("today", days_ago=0), judgement("c", days_ago=1)], TODAY)
    assert (told.votes_today, told.days_in_a_row) == (1, 2)


def test_repeats_agree_where_both_looks_said_the_same():
    first = [judgement(f"c{i}", "a") for i in range(4)]
    again = [judgement(f"c{i}", "a" if i < 3 else "tie", pass_no=2) for i in range(4)]
    told = counted([*again, *first, judgement("once")], TODAY)
    assert (told.repeats.agree, told.repeats.n) == (3, 4)
    assert told.repeats.low == pytest.approx(0.3006, abs=1e-4)  # Wilson, by hand
    assert told.repeats.high == pytest.approx(0.9544, abs=1e-4)


def test_known_answers_are_counted_once_by_the_first_look_and_by_confidence():
    judged = [
        judgement("g1", "a", gold="a", stated_confidence=0.92),
        judgement("g2", "b", gold="a", stated_confidence=0.9),
        judgement("g3", "tie", gold="tie", stated_confidence=0.5),
        judgement("g1", "b", gold="a", pass_no=2),
        judgement("plain", "a", stated_confidence=0.9),
    ]
    told = counted(judged, TODAY)
    assert (told.gold.right, told.gold.n) == (2, 3)
    assert [(one.stated, one.right, one.n) for one in told.confidence] == [(0.5, 1, 1), (0.9, 1, 2)]


def test_todays_hidden_cards_are_not_told_yet():
    judged = [
        judgement("g", "b", gold="a", days_ago=0, stated_confidence=1.0),
        judgement("c", pass_no=2, days_ago=0),
        judgement("c", days_ago=1),
    ]
    told = counted(judged, TODAY)
    assert (told.votes_today, told.gold.n, told.repeats.n, told.confidence) == (2, 0, 0, [])
