import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.improve.evaluation import CompletionJudge
from rlhf_pipeline.improve.retraining.hard_negatives import add_hard_negatives
from tests.unit.improve.retraining.test_selection import BY_PEOPLE, pairs, scores, select_pairs


class Likes:
    """Scores by text."""

    def __init__(self, **texts):
        self.texts = texts

    def score(self, prompts, completions, *, progress=None):
        return np.array([self.texts[text] for text in completions])


def add(frame, judge, n=10, references=None):
    selected = select_pairs(frame, scores([0.9] * len(frame)), None, BY_PEOPLE)
    rows = add_hard_negatives(
        selected,
        frame,
        CompletionJudge(judge, "demo.reward_model@1"),
        n,
        confidence=0.7,
        references=references,
    )
    is_new = rows["origin"] == "hard_negative"
    pd.testing.assert_frame_equal(rows[~is_new].reset_index(drop=True), selected)
    assert rows["information"].is_monotonic_decreasing  # all weights are 1
    return rows[is_new].reset_index(drop=True)


TWICE = pairs(2, prompt_id="p0", chosen=["w", "y"], rejected=["x", "z"])


def test_closest_completion_that_is_certainly_worse_is_rejected():
    (row,) = add(TWICE, Likes(w=3.0, x=0.0, y=2.9, z=2.0)).to_dict("records")
    assert (row["chosen"], row["rejected"], row["origin"]) == ("w", "z", "hard_negative")
    assert row["difficulty"] == pytest.approx(2 * (1 - 0.731), abs=1e-3)


def test_hard_negative_never_prefers_a_wrong_answer():
    judge = Likes(w=3.0, x=0.0, y=2.9, z=2.0)
    assert add(TWICE, judge, references={"p0": "z"}).empty
    assert len(add(TWICE, judge, references={"p0": "w"})) == 1


def test_hard_negatives_are_one_per_prompt_up_to_the_limit():
    frame = pairs(
        4, prompt_id=["p0", "p0", "p1", "p1"], chosen=["w", "y"] * 2, rejected=["x", "z"] * 2
    )
    judge = Likes(w=3.0, x=0.0, y=2.9, z=2.0)
    assert len(add(frame, judge)) == 2
    assert len(add(frame, judge, n=1)) == 1
    assert add(frame, judge, n=0).empty
