"""Which votes the quarantines leave out, while nobody lifts them."""

import pandas as pd
import pytest

from rlhf_pipeline.core.records import TriggerDecision
from rlhf_pipeline.feedback.votes import NO_QUARANTINES, Quarantines


def decision(number, remedy="quarantine", *names, start=10, action="fire", answers=None):
    return TriggerDecision(
        decision_id=number,
        action=action,
        reasons=(),
        event_ids=(),
        evidence={"quarantine": {"annotator_ids": names, "from_seq": start}},
        remedy=remedy,
        answers=answers,
    )


def test_quarantines_last_until_they_are_lifted():
    begun = [
        decision(1, "quarantine", "bob", start=10),
        decision(2, "quarantine", "bob", "cat", start=5),
        decision(3, "quarantine", "dan", action="hold"),
    ]
    assert Quarantines.from_decisions(begun) == Quarantines({"bob": 5, "cat": 5})
    lifted = [*begun, decision(4, "lift_quarantine", "bob", "cat", answers=2)]
    assert Quarantines.from_decisions(lifted) == Quarantines({"bob": 10})


def test_rows_without_a_vote_are_kept():
    rows = pd.DataFrame(
        {
            "annotator_id": ["bob", "bob", None, "cat"],
            "seq": pd.array([9, 10, None, 11], dtype="Int64"),
        }
    )
    remaining = Quarantines({"bob": 10}).drop(rows)
    assert remaining["seq"].tolist() == [9, pd.NA, 11]
    assert NO_QUARANTINES.drop(rows) is rows


@pytest.mark.parametrize(
    ("before", "now", "first"),
    [
        ({}, {"bob": 10, "cat": 20}, 10),
        ({"bob": 10}, {"bob": 10, "cat": 20}, 20),
        ({"bob": 10}, {"bob": 5}, 5),
        ({"bob": 10}, {}, None),
        ({"bob": 10}, {"bob": 12, "cat": 5}, None),
    ],
)
def test_further_quarantine_starts_at_its_first_vote(before, now, first):
    assert Quarantines(now).first_added(before) == first
