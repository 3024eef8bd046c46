import pandas as pd
import pytest

from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.feedback.votes.agreement import agreement
from rlhf_pipeline.feedback.votes.counting import counting_votes


def votes(rows: list[tuple[str, str, str, str | None]]) -> pd.DataFrame:
    """(comparison, annotator, choice, repeat_of)"""
    frame = pd.DataFrame(rows, columns=["comparison_id", "annotator_id", "choice", "repeat_of"])
    moment = pd.Timestamp("2026-01-01T10:00Z")
    more = {
        "day": "2026-01-01",
        "seq": range(1, len(frame) + 1),
        "vote_id": [f"v{i}" for i in range(len(frame))],
        "strength": None,
    }
    frame = frame.assign(
        **more,
        prompt_id=frame["comparison_id"],
        annotator_kind="human",
        voted_at=moment,
        received_at=moment,
    )
    return check_frame(frame, VOTES)


def test_raw_agreement_counts_pairs_of_votes_and_ties_as_a_choice():
    measured = agreement(
        votes(
            [
                ("c1", "x", "a", None),
                ("c1", "y", "a", None),
                ("c1", "z", "tie", None),
                ("c2", "x", "b", None),
            ]
        )
    )
    assert measured.raw_agreement.value == pytest.approx(1 / 3)
    assert (measured.n_overlapping, measured.n_comparisons, measured.n_annotators) == (1, 2, 3)
    assert measured.share_of_ties == pytest.approx(1 / 4)


def test_repeat_is_consistent_if_the_same_completion_is_chosen():
    first = [(f"c{i}", "x", "a", None) for i in range(4)]
    again = [
        ("r0", "x", "b", "c0"),
        ("r1", "x", "b", "c1"),
        ("r2", "x", "b", "c2"),
        ("r3", "x", "a", "c3"),
    ]
    measured = agreement(votes(first + again))
    assert measured.self_consistency.value == 0.75
    assert measured.raw_agreement is None


def judged_twice(*rows: tuple[str, str, str]) -> pd.DataFrame:
    """(comparison, choice in the first pass, choice in the second)"""
    first = [(c, "x", choice, None) for c, choice, _ in rows]
    again = [(c, "x", choice, None) for c, _, choice in rows]
    return votes(first + again).assign(pass_no=[1] * len(rows) + [2] * len(rows))


def test_later_pass_is_consistent_if_the_same_side_is_chosen():
    log = judged_twice(("c0", "a", "a"), ("c1", "b", "a"), ("c2", "tie", "a"), ("c3", "a", "a"))
    assert agreement(log).self_consistency.value == 0.5
    assert agreement(log).n_votes == 4
    assert agreement(counting_votes(log)).self_consistency is None


def test_self_consistency_uses_swapped_repeats_and_later_passes():
    frame = votes([("c0", "x", "a", None), ("r0", "x", "a", "c0")])
    assert agreement(frame).self_consistency.value == 0
    again = judged_twice(("c1", "b", "b"), ("c2", "b", "b"), ("c3", "b", "b"))
    again = again.assign(vote_id="again-" + again["vote_id"], seq=again["seq"] + 10)
    both = pd.concat([frame, again], ignore_index=True)
    assert agreement(both).self_consistency.value == 0.75
