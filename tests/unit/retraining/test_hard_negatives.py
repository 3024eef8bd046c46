import numpy as np
import pandas as pd

from rlhf_pipeline.evaluation import CompletionJudge
from rlhf_pipeline.retraining.hard_negatives import add_hard_negatives
from tests.unit.retraining.test_selection import BY_PEOPLE, pairs, scores, select_pairs


class Likes:
    """Scores by text."""

    def __init__(self, **texts):
        self.texts = texts

    def score(self, prompts, completions, *, progress=None):
        return np.array([self.texts[text] for text in completions])


def add(given, judge, n=10, references=None):
    selected = select_pairs(given, scores([0.9] * len(given)), None, BY_PEOPLE)
    rows = add_hard_negatives(
        selected,
        given,
        CompletionJudge(judge, "demo.reward_model@1"),
        n,
        confidence=0.7,
        references=references or {},
    )
    is_new = rows["origin"] == "hard_negative"
    pd.testing.assert_frame_equal(rows[~is_new].reset_index(drop=True), selected)
    assert rows["information"].is_monotonic_decreasing  # all weights are 1
    return rows[is_new].reset_index(drop=True)


TWICE = pairs(2, prompt_id="p0", chosen=["w", "y"], rejected=["x", "z"])


def test_the_closest_completion_that_is_surely_worse_is_rejected():
    (row,) = add(TWICE, Likes(w=3.0, x=0.0, y=2.9, z=2.0)).to_dict("records")
    assert (row["chosen"], row["rejected"], row["origin"]) == ("w", "z", "hard_negative")
    assert row["reason"] == (
        "hard negative: close completion, reward model gives 0.73 to the chosen one"
    )


def test_a_liked_wrong_answer_is_rejected_for_the_right_one():
    given = pairs(2, prompt_id="p0", chosen=["a 7", "b 7"], rejected=["c 8", "d 9"])
    judge = Likes(**{"a 7": 1.0, "b 7": 0.5, "c 8": 0.9, "d 9": -3.0})
    (row,) = add(given, judge, references={"p0": "7"}).to_dict("records")
    assert (row["chosen"], row["rejected"]) == ("a 7", "d 9")
    assert "wrong answer" in row["reason"]
    # liked better than every right answer: no such pair
    judge = Likes(**{"a 7": -1.0, "b 7": -2.0, "c 8": 0.9, "d 9": 1.0})
    assert add(given, judge, references={"p0": "7"}).empty


def test_there_is_one_a_prompt_and_no_more_than_asked():
    given = pairs(
        4, prompt_id=["p0", "p0", "p1", "p1"], chosen=["w", "y"] * 2, rejected=["x", "z"] * 2
    )
    judge = Likes(w=3.0, x=0.0, y=2.9, z=2.0)
    assert len(add(given, judge)) == 2
    assert len(add(given, judge, n=1)) == 1
    assert add(given, judge, n=0).empty
