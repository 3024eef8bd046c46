"""Which recorded changes of taste a fit takes into account, and which pairs are of today's
taste.
"""

from datetime import UTC, datetime

import pandas as pd
import pytest

from rlhf_pipeline.core.records import TasteChange
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAIRS = pd.DataFrame(
    {"category": ["poetry", "poetry", "facts", "facts"], "max_seq": [299, 300, 99, 100]}
)


def change(seq, category=None, *, retracted=False):
    at = NOON if retracted else None
    return TasteChange(
        change_id=seq,
        change_seq=seq,
        category=category,
        cause="because",
        actor="ann",
        recorded_at=NOON,
        retracted_at=at,
    )


@pytest.mark.parametrize(
    ("recorded", "scopes", "expected"),
    [
        ([], {}, NO_CHANGES),
        ([change(100)], {}, TasteChanges(100)),
        ([change(300), change(100)], {}, TasteChanges(300)),
        ([change(300, retracted=True), change(100)], {}, TasteChanges(100)),
        ([change(100, retracted=True)], {}, NO_CHANGES),
        ([change(100), change(300, "poetry")], {}, TasteChanges(100, {"poetry": 300})),
        ([change(300), change(100)], {"up_to_seq": 299}, TasteChanges(100)),
        ([change(300)], {"up_to_seq": 300}, TasteChanges(300)),
        ([], {"change_seq": 50}, TasteChanges(50)),
        ([change(100)], {"change_seq": 50}, TasteChanges(100)),
        ([change(100)], {"change_seq": 150}, TasteChanges(150)),
    ],
)
def test_latest_unretracted_change_of_each_scope_counts(recorded, scopes, expected):
    assert TasteChanges.from_log(recorded, **scopes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (NO_CHANGES, [True] * 4),
        (TasteChanges(100), [True, True, False, True]),
        (TasteChanges(by_category={"poetry": 300}), [False, True, True, True]),
        (TasteChanges(100, {"poetry": 300}), [False, True, False, True]),
        (TasteChanges(100, {"poetry": 50}), [True, True, False, True]),
    ],
)
def test_a_change_of_a_category_applies_to_its_pairs_only(changes, expected):
    assert changes.is_current(PAIRS).tolist() == expected


def test_latest_seq_is_that_of_the_last_change_of_any_scope():
    assert NO_CHANGES.latest_seq is None
    assert TasteChanges(100, {"poetry": 300}).latest_seq == 300
    assert not NO_CHANGES
    assert (NO_CHANGES.to_json(), TasteChanges(100, {"poetry": 300}).to_json()) == (
        {},
        {"since_seq": 100, "by_category": {"poetry": 300}},
    )
