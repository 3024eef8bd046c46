"""Of what an annotator said of a comparison again and again: what stands, what counts, and what was
said twice.
"""

from collections.abc import Callable

import pandas as pd
import pytest

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.feedback.votes.counting import (
    add_earlier_votes,
    counting_votes,
    repeat_passes,
    standing_votes,
)
from tests.unit.feedback.votes.simulated import votes_of

Cast = tuple[int, str, int, int, str | None]


def log(*cast: Cast, annotator: object = 0) -> pd.DataFrame:
    """(comparison, choice, pass_no, revision_no, supersedes) in order of seq: v0 has seq 1."""
    comparison, choice, pass_no, revision_no, supersedes = zip(*cast, strict=True)
    return check_frame(
        votes_of(comparison, annotator, choice, prompt=comparison).assign(
            pass_no=pass_no, revision_no=revision_no, supersedes=supersedes
        ),
        VOTES,
    )


def list_choices(votes: pd.DataFrame) -> list[list[object]]:
    return votes[["vote_id", "choice"]].to_numpy().tolist()


def test_revision_replaces_its_original():
    votes = log((0, "a", 1, 0, None), (1, "a", 1, 0, None), (0, "b", 1, 1, "v0"))
    assert (
        list_choices(standing_votes(votes))
        == list_choices(counting_votes(votes))
        == [["v1", "a"], ["v2", "b"]]
    )


def test_the_last_of_a_chain_of_revisions_stands():
    votes = log((0, "a", 1, 0, None), (0, "b", 1, 1, "v0"), (0, "tie", 1, 2, "v1"))
    assert (
        list_choices(standing_votes(votes))
        == list_choices(counting_votes(votes))
        == [["v2", "tie"]]
    )


def test_every_pass_stands_and_the_last_counts():
    votes = log((0, "a", 1, 0, None), (0, "b", 2, 0, None))
    assert list_choices(standing_votes(votes)) == [["v0", "a"], ["v1", "b"]]
    assert list_choices(counting_votes(votes)) == [["v1", "b"]]


def test_a_later_pass_wins_over_a_later_revision_of_an_earlier_one():
    votes = log((0, "a", 1, 0, None), (0, "b", 2, 0, None), (0, "tie", 1, 1, "v0"))
    assert list_choices(standing_votes(votes)) == [["v1", "b"], ["v2", "tie"]]
    assert list_choices(counting_votes(votes)) == [["v1", "b"]]


def test_skip_counts_as_the_last_word():
    votes = log((0, "a", 1, 0, None), (0, "skip", 1, 1, "v0"), (1, "a", 1, 0, None))
    assert (
        list_choices(standing_votes(votes))
        == list_choices(counting_votes(votes))
        == [["v1", "skip"], ["v2", "a"]]
    )


def test_each_annotator_has_a_last_word():
    votes = log((0, "a", 1, 0, None), (0, "b", 1, 0, None), annotator=[0, 1])
    assert list_choices(counting_votes(votes)) == [["v0", "a"], ["v1", "b"]]


def test_a_vote_superseded_outside_the_frame_stands():
    votes = log((0, "a", 1, 0, None), (0, "b", 1, 1, "v0"))
    as_of_one = votes[votes["seq"] <= 1]
    assert (
        list_choices(standing_votes(as_of_one))
        == list_choices(counting_votes(as_of_one))
        == [["v0", "a"]]
    )
    alone = votes[votes["seq"] > 1]
    assert (
        list_choices(standing_votes(alone)) == list_choices(counting_votes(alone)) == [["v1", "b"]]
    )


def test_votes_without_pass_number_count_by_seq():
    first = votes_of([0, 1], 0, ["a", "a"])
    again = votes_of([0], 0, ["b"]).assign(vote_id="later", seq=7, day="2026-01-03")
    both = pd.concat([again, first], ignore_index=True)
    for votes in (both, both.drop(columns=["pass_no", "revision_no", "supersedes"])):
        assert list_choices(counting_votes(votes)) == [["v1", "a"], ["later", "b"]]
        assert list_choices(counting_votes(votes[votes["seq"] <= 6])) == [["v0", "a"], ["v1", "a"]]
        assert repeat_passes(votes).empty


def test_with_partly_missing_pass_numbers_the_newest_vote_counts():
    votes = log((0, "a", 1, 0, None), (0, "a", 1, 1, "v0"), (0, "b", 2, 0, None))
    votes.loc[2, ["pass_no", "revision_no"]] = pd.NA
    assert list_choices(counting_votes(votes)) == [["v2", "b"]]


def test_day_includes_earlier_votes_that_it_revises():
    votes = log(
        (0, "a", 1, 0, None), (0, "b", 2, 0, None), (0, "tie", 1, 1, "v0"), (1, "a", 1, 0, None)
    )
    of_day = votes[votes["seq"] == 3]
    together = add_earlier_votes(of_day, votes)
    assert together["seq"].tolist() == [1, 2, 3]
    assert list_choices(counting_votes(together)) == [["v1", "b"]], (
        "a revised first pass counts nowhere"
    )
    assert add_earlier_votes(votes[votes["seq"] == 4], votes)["seq"].tolist() == [4]


def test_a_pass_is_listed_in_its_last_revision():
    votes = log(
        (0, "a", 1, 0, None),
        (1, "a", 1, 0, None),
        (1, "b", 2, 0, None),
        (0, "b", 2, 0, None),
        (0, "tie", 1, 1, "v0"),
        (0, "a", 2, 1, "v3"),
        (1, "skip", 3, 0, None),
    )
    passes = repeat_passes(votes)
    assert passes.columns.tolist() == [
        "prompt_id",
        "comparison_id",
        "annotator_id",
        "pass_no",
        "choice_first",
        "choice",
    ]
    assert passes.to_numpy().tolist() == [
        ["p1", "c00001", "ann0000", 2, "a", "b"],
        ["p0", "c00000", "ann0000", 2, "tie", "a"],
        ["p1", "c00001", "ann0000", 3, "a", "skip"],
    ]


def test_pass_without_its_first_is_no_repeat():
    votes = log((0, "a", 1, 0, None), (0, "b", 2, 0, None), (1, "a", 2, 0, None))
    assert repeat_passes(votes)["comparison_id"].tolist() == ["c00000"]
    assert repeat_passes(votes[votes["pass_no"] > 1]).empty
    theirs = votes.assign(annotator_id=["ann0001", "ann0000", "ann0000"])
    assert repeat_passes(theirs).empty


def test_first_passes_are_no_repeats():
    votes = log((0, "a", 1, 0, None), (0, "b", 1, 1, "v0"))
    assert repeat_passes(votes).empty
    assert repeat_passes(VOTES.empty_frame()).empty


@pytest.mark.parametrize("rule", [standing_votes, counting_votes, repeat_passes])
def test_row_order_does_not_matter(rule: Callable[[pd.DataFrame], pd.DataFrame]):
    votes = log(
        (2, "a", 1, 0, None),
        (0, "a", 1, 0, None),
        (2, "b", 2, 0, None),
        (1, "a", 1, 0, None),
        (0, "b", 1, 1, "v1"),
        (0, "a", 2, 0, None),
    )
    rows = rule(votes)
    assert rows["seq" if "seq" in rows else "comparison_id"].tolist() == {
        "standing_votes": [1, 3, 4, 5, 6],
        "counting_votes": [3, 4, 6],
        "repeat_passes": ["c00002", "c00000"],
    }.get(rule.__name__)
    for seed in range(5):
        mixed = votes.sample(frac=1, random_state=seed)
        before = mixed.copy()
        pd.testing.assert_frame_equal(rule(mixed), rows)
        pd.testing.assert_frame_equal(mixed, before)


@pytest.mark.parametrize("rule", [standing_votes, counting_votes])
def test_no_votes_give_the_empty_frame(rule: Callable[[pd.DataFrame], pd.DataFrame]):
    pd.testing.assert_frame_equal(rule(VOTES.empty_frame()), VOTES.empty_frame())


@pytest.mark.parametrize("rule", [standing_votes, counting_votes, repeat_passes])
def test_a_broken_frame_is_refused(rule: Callable[[pd.DataFrame], pd.DataFrame]):
    with pytest.raises(FrameError, match="missing columns"):
        rule(votes_of([0], 0, ["a"]).drop(columns="seq"))
