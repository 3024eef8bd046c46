"""Rows of data sets: which pairs and feedback become which rows."""

import json
from datetime import date

import pytest

from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.curation import VoteQuery
from rlhf_pipeline.feedback.datasets.dataset_rows import (
    build_rows,
    compare_rows,
    make_feedback_pairs,
    select_vote_pairs,
)
from tests.dataset_rows import (
    build_curated,
    build_dataset_rows,
    build_feedback,
    build_vote_pairs,
)

NO_PAIRS = build_vote_pairs().head(0)


def texts(frame):
    rows = frame[["prompt", "completion", "rejected"]].astype(object)
    return rows.where(rows.notna(), None).to_numpy().tolist()


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, ["c1", "c2"]),
        ({"categories": ["creative"]}, ["c2"]),
        ({"min_agreement": 0.8}, ["c2"]),
        ({"min_votes": 2}, ["c1"]),
        ({"since": date(2026, 3, 2)}, []),
        ({"until": date(2026, 2, 28)}, []),
    ],
)
def test_a_query_selects_pairs(query, ids):
    assert list(select_vote_pairs(build_vote_pairs(), VoteQuery(**query))["comparison_id"]) == ids


def test_pairs_that_measure_models_are_never_selected():
    pairs = build_vote_pairs(split=["calib", "test"])
    assert select_vote_pairs(pairs, VoteQuery()).empty


def test_even_votes_are_never_selected():
    pairs = build_vote_pairs(agreement=[0.5, 1.0])
    assert list(select_vote_pairs(pairs, VoteQuery())["comparison_id"]) == ["c2"]


def test_only_pairs_of_given_comparisons_are_selected():
    chosen = select_vote_pairs(build_vote_pairs(), VoteQuery(), ["c2", "c9"])
    assert list(chosen["comparison_id"]) == ["c2"]


def test_a_hand_made_pair_keeps_its_strength_and_context():
    frame = build_rows("preference", NO_PAIRS, [build_curated(feedback_ids=(3,))])
    row = frame.iloc[0]
    assert (row["row_id"], row["strength"]) == ("pair:7@2", 0.75)
    assert json.loads(row["sources"]) == ["pair:7@2", "feedback:3"]
    assert build_chat(row["prompt"])[0]["content"] == (
        "The manual says: make deploy.\n\nHow do I deploy?"
    )


def test_a_rejected_pair_gives_no_row():
    assert build_rows("preference", NO_PAIRS, [build_curated(status="rejected")]).empty


def test_a_correction_is_preferred_and_replaces_its_comparison():
    entry = build_feedback(4, "correction", correction="Run it.", comparison_id="c1")
    frame = build_rows("preference", build_vote_pairs(), feedback=[entry])
    assert list(frame["row_id"]) == ["comparison:c2", "feedback:4"]
    assert texts(frame)[1] == ["How do I deploy?", "Run it.", "Ask someone."]


def test_ratings_of_one_prompt_become_preferences():
    ratings = [("A", 5), ("B", 2), ("B", 4), ("C", 3)]
    entries = [
        build_feedback(n, "rating", completion=text, value=value)
        for n, (text, value) in enumerate(ratings, start=1)
    ]
    frame = build_rows("preference", NO_PAIRS, feedback=entries[::-1])
    rows = frame.set_index("rejected")  # B and C have one mean, so neither is better
    assert dict(rows["completion"]) == {"B": "A", "C": "A"}
    assert dict(rows["strength"]) == {"B": 0.5, "C": 0.5}
    assert json.loads(rows["sources"]["B"]) == ["feedback:1", "feedback:2", "feedback:3"]


def test_feedback_becomes_hand_made_pairs_or_says_why_not():
    entries = [
        build_feedback(1, "correction", correction="Run it.", comparison_id="c1"),
        build_feedback(2, "rating", value=5, completion="A"),
        build_feedback(3, "rating", value=3, completion="B"),
        build_feedback(4, "rating", value=3, prompt="other"),
        build_feedback(5, "thumbs", value=1),
        build_feedback(6, "correction", correction="Ask someone. "),
        build_feedback(7, "rating", value=1, completion="C", prompt=" "),
        build_feedback(8, "rating", value=5, completion="D", prompt=" "),
    ]
    pairs, faults = make_feedback_pairs(entries)
    assert [(texts.chosen, texts.rejected, texts.strength, ids) for texts, ids in pairs] == [
        ("Run it.", "Ask someone.", 1.0, (1,)),
        ("A", "B", 0.5, (2, 3)),
    ]
    assert set(faults) == {4, 5, 6, 7, 8}
    assert "thumbs prefers nothing" in faults[5]
    assert "same text" in faults[6]
    assert faults[7] == "prompt: must not be blank"


def test_two_versions_differ_by_their_rows():
    old, new = build_dataset_rows(4), build_dataset_rows(5, agreement=0.9)[1:]
    new.loc[2, "completion"] = "Another text."
    added, removed = compare_rows(old, new)
    assert list(added["row_id"]) == ["comparison:c2", "comparison:c4"]
    assert list(removed["row_id"]) == ["comparison:c0", "comparison:c2"]
    assert all(part.empty for part in compare_rows(old, old))


def test_thumbs_and_ratings_judge_their_completion():
    entries = [
        build_feedback(1, "thumbs", value=1),
        build_feedback(2, "thumbs", value=0),
        *(build_feedback(2 + value, "rating", value=value) for value in (1, 2, 3, 4, 5)),
        build_feedback(8, "thumbs", value=1, completion=None, completion_id="x"),
    ]
    frame = build_rows("unpaired", NO_PAIRS, feedback=entries)
    labels = frame.set_index("row_id")["label"]
    assert dict(labels) == {
        "feedback:1": True,
        "feedback:2": False,
        "feedback:3": False,
        "feedback:4": False,
        "feedback:6": True,
        "feedback:7": True,
    }
    liked = build_rows("sft", NO_PAIRS, feedback=entries)
    assert list(liked["row_id"]) == ["feedback:1", "feedback:6", "feedback:7"]


def test_a_preference_becomes_rows_of_the_other_types():
    pairs = build_vote_pairs().head(1)
    assert texts(build_rows("sft", pairs)) == [["Where is Bern?", "In Switzerland.", None]]
    unpaired = build_rows("unpaired", pairs)
    assert unpaired[["completion", "label"]].to_numpy().tolist() == [
        ["In Switzerland.", True],
        ["In Austria.", False],
    ]


def test_the_order_of_inputs_is_irrelevant():
    pairs, curated = build_vote_pairs(), [build_curated(1), build_curated(2)]
    same = build_rows("preference", pairs[::-1], curated[::-1])
    assert build_rows("preference", pairs, curated).equals(same)
