"""Statuses of data sets, and hand-made pairs."""

from datetime import date
from itertools import pairwise

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.curation import (
    MOVES,
    FeedbackQuery,
    PairChange,
    PairTexts,
    VoteQuery,
    check_move,
    find_edited_status,
)
from rlhf_pipeline.core.errors import DatasetConflict

TEXTS = {"prompt": "p", "chosen": "c", "rejected": "r"}


def test_a_data_set_goes_through_its_statuses_in_order():
    way = ["draft", "curating", "ready", "exported", "exported", "curating", "ready", "archived"]
    for old, new in pairwise(way):
        check_move("set", old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [("draft", "ready"), ("draft", "exported"), ("curating", "exported"), ("archived", "draft")],
)
def test_an_illegal_move_names_the_legal_ones(old, new):
    with pytest.raises(DatasetConflict, match=f"is {old} and cannot become {new}"):
        check_move("set", old, new)


def test_an_edit_opens_a_frozen_set_for_its_next_version():
    edited = {status: find_edited_status("set", status) for status in MOVES if status != "archived"}
    assert edited == {
        "draft": "draft",
        "curating": "curating",
        "ready": "curating",
        "exported": "curating",
    }
    assert find_edited_status("set", "draft", begins=True) == "curating"


def test_an_archived_set_is_not_edited():
    with pytest.raises(DatasetConflict, match="cannot be edited"):
        find_edited_status("set", "archived")


@pytest.mark.parametrize("query", [VoteQuery, FeedbackQuery])
def test_a_query_of_days_in_the_wrong_order_is_refused(query):
    with pytest.raises(ValidationError, match="exchange them or leave one out"):
        query(since="2026-01-02", until="2026-01-01")
    assert query(since="2026-01-01", until="2026-01-01").until == date(2026, 1, 1)


@pytest.mark.parametrize("field", ["prompt", "chosen", "context"])
def test_a_blank_text_of_a_pair_is_refused(field):
    texts = TEXTS | {field: [" "] if field == "context" else " "}
    with pytest.raises(ValidationError, match="must not be blank"):
        PairTexts(**texts)
    with pytest.raises(ValidationError, match="must not be blank"):
        PairChange(**{field: texts[field]})


def test_every_status_can_be_reached():
    assert {new for moves in MOVES.values() for new in moves} | {"draft"} == set(MOVES)


def test_a_pair_takes_the_names_of_other_tools():
    pair = PairTexts.model_validate(
        {
            "query": "p",
            "chosen_response": "c",
            "rejected_response": "r",
            "preference_strength": 0.25,
            "context_documents": ["d"],
            "annotation_notes": "n",
        }
    )
    assert pair == PairTexts(**TEXTS, strength=0.25, context=("d",), notes="n")


@pytest.mark.parametrize("change", [{"rejected": " c "}, {"chosen": " "}, {"prompt": ""}])
def test_equal_or_empty_sides_are_refused(change):
    with pytest.raises(ValidationError):
        PairTexts(**(TEXTS | change))
