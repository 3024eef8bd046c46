"""Rows that cannot be trained on are named with cause and cure."""

import pandas as pd

from rlhf_pipeline.retraining.row_checks import BadRow, describe_rows, find_bad_rows

ROWS = pd.DataFrame(
    {
        "comparison_id": ["fine", "same", "long", "longer"],
        "prompt": ["Why?", "Why?", "why " * 50, "why " * 200],
        "chosen": ["Because.", "No. ", "Yes.", "Yes."],
        "rejected": ["No.", "No.", "No.", "No."],
    }
)


def find(rows: pd.DataFrame, limit: int = 40) -> list[BadRow]:
    return find_bad_rows(rows, lambda t: len(t.split()), room=8, limit=limit, context=128)


def test_each_bad_row_has_its_cause_and_cure() -> None:
    same, long, longer = find(ROWS)
    assert (same.comparison_id, same.stops) == ("same", True)
    assert "one text" in str(same)
    assert str(long) == (
        "comparison long: its prompt has 50 tokens; with 8 for a completion that exceeds the 40 of "
        "max_length. Set max_length=58, or shorten the prompt."
    )
    assert not long.stops
    assert longer.cure == "Shorten the prompt"


def test_room_in_max_length_leaves_the_context_as_limit() -> None:
    assert [row.comparison_id for row in find(ROWS, limit=512)] == ["same", "longer"]
    assert "128 of the policy's context" in str(find(ROWS, limit=512)[1])


def test_many_rows_are_counted() -> None:
    rows = pd.concat([ROWS.iloc[[1]]] * 23)
    assert describe_rows(find(rows))[-1] == "and 3 more"
    assert find(ROWS.head(1)) == []
