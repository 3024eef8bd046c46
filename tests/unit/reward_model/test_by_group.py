import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model import accuracy_by_group, reward_model_params
from rlhf_pipeline.votes import Opening


class LikesLength:
    """Scores a completion by its length, and counts how often it is asked."""

    weights_hash = "likes length"

    def __init__(self) -> None:
        self.n_asked = 0

    def score(self, prompts, completions, *, progress=None):
        self.n_asked += 1
        return np.array([float(len(c)) for c in completions])


def pairs(rows: list[tuple[str, str, str, str]]) -> pd.DataFrame:
    """(comparison, split, chosen, rejected)"""
    frame = pd.DataFrame(rows, columns=["comparison_id", "split", "chosen", "rejected"])
    more = {
        "day": "2026-01-01",
        "prompt_id": frame["comparison_id"],
        "prompt": "ask",
        "margin": 0.5,
        "agreement": 1.0,
        "n_votes": 1,
    }
    return check_frame(
        frame.assign(
            **more, chosen_side="b", annotator_kind="human", category="argument", max_seq=1
        ),
        PREFERENCE_PAIRS,
    )


FRAME = pairs(
    [
        ("c1", "test", "long one", "short"),
        ("c2", "test", "x", "longer"),
        ("c3", "test", "longest", "short"),
        ("d1", "test", "x", "longer"),
        ("d2", "train", "longer", "x"),
        ("e1", "train", "longer", "x"),
    ]
)


def test_each_group_is_judged_on_its_own_test_pairs_largest_first():
    model = LikesLength()
    found = accuracy_by_group(
        model,
        FRAME,
        {"c1": "debates", "c2": "debates", "c3": "debates", "d1": "qa", "d2": "qa", "e1": "other"},
    )
    assert list(found) == ["debates", "qa"]
    assert (found["debates"].n, found["debates"].accuracy.value) == (3, pytest.approx(2 / 3))
    assert (found["qa"].n, found["qa"].accuracy.value, found["qa"].longer_wins.value) == (
        1,
        0.0,
        0.0,
    )
    assert model.n_asked == 1


def test_the_test_split_is_opened_once_on_record_and_ceilings_stand_beside():
    opened: list[Opening] = []
    ceiling = Interval(value=0.8, low=0.7, high=0.9, n=50)
    found = accuracy_by_group(
        LikesLength(),
        FRAME,
        {"c1": "debates", "d1": "qa"},
        ceilings={"debates": ceiling},
        record=opened.append,
    )
    assert [(o.model, o.purpose, o.n_pairs) for o in opened] == [
        ("likes length", "accuracy by group", 2)
    ]
    assert (found["debates"].ceiling, found["qa"].ceiling) == (ceiling, None)


def test_pairs_without_a_group_are_left_out_and_none_at_all_is_an_error():
    found = accuracy_by_group(
        LikesLength(), FRAME, {"c1": "debates"}, reward_model_params(n_resamples=100)
    )
    assert {name: test.n for name, test in found.items()} == {"debates": 1}
    with pytest.raises(NotEnoughData, match="test pair"):
        accuracy_by_group(LikesLength(), FRAME, {"d2": "qa"})


def test_the_usual_side_is_that_of_the_groups_own_training():
    found = accuracy_by_group(LikesLength(), FRAME, {"c1": "debates", "d1": "qa", "d2": "qa"})
    assert found["qa"].majority_side.value == 1.0  # b in training and b now
    assert found["debates"].majority_side.value == 0.0  # nothing to train on: a
