"""Confident errors are remembered; a new model's fixes and regressions are counted apart."""

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import PREDICTIONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.improve.evaluation.error_memory import (
    ErrorMemory,
    MemoryCounts,
    recall_predictions,
    retest,
)


class ListedModel:
    """Scores the listed completions 1, all others 0."""

    def __init__(self, *completions):
        self.liked = set(completions)

    def score(self, prompts, completions, *, progress=None):
        return np.array([float(completion in self.liked) for completion in completions])


def pairs(*rows):
    """(comparison_id, split, n_votes, agreement) each."""
    return check_frame(
        pd.DataFrame(
            [
                {
                    "day": "2026-01-01",
                    "comparison_id": name,
                    "prompt_id": f"p{name}",
                    "prompt": "ask",
                    "chosen": f"{name} chosen",
                    "rejected": f"{name} rejected",
                    "margin": 0.5,
                    "agreement": agreement,
                    "n_votes": n,
                    "chosen_side": "a" if i % 2 else "b",
                    "annotator_kind": "human",
                    "category": "coding",
                    "split": split,
                    "max_seq": 10 * (i + 1),
                }
                for i, (name, split, n, agreement) in enumerate(rows)
            ]
        ),
        PREFERENCE_PAIRS,
    )


def predictions(of, p_chosen, *, model="demo.reward_model@1", hour=1):
    sides = of.set_index("comparison_id")["chosen_side"]
    return check_frame(
        pd.DataFrame(
            [
                {
                    "day": "2026-01-01",
                    "comparison_id": name,
                    "reward_model": model,
                    "calibrator": "none",
                    "data_hash": "d",
                    "features_hash": "f",
                    "score_a": 0.0,
                    "score_b": 0.0,
                    "p_raw": 0.5,
                    "p_calibrated": p if sides[name] == "a" else 1 - p,
                    "predicted_at": pd.Timestamp(f"2026-01-01T{hour:02d}:00Z"),
                }
                for name, p in p_chosen.items()
            ]
        ),
        PREDICTIONS,
    )


ROWS = pairs(
    ("e1", "train", 3, 1.0),
    ("e2", "calib", 2, 1.0),
    ("e3", "calib", 4, 0.75),
    ("h1", "train", 3, 1.0),
    ("h2", "calib", 3, 1.0),
)
MADE = predictions(ROWS, {"e1": 0.05, "e2": 0.08, "e3": 0.1, "h1": 0.95, "h2": 0.92})


def test_confident_errors_and_hits_with_agreeing_votes_are_remembered() -> None:
    memory = recall_predictions(ROWS, MADE)
    assert memory["comparison_id"].tolist() == ["e1", "e2", "e3", "h1", "h2"]
    assert memory["was_error"].tolist() == [True, True, True, False, False]
    assert np.allclose(memory["p_chosen"], [0.05, 0.08, 0.1, 0.95, 0.92])


def test_unsure_disputed_single_and_test_pairs_are_forgotten() -> None:
    rows = pairs(
        ("unsure", "train", 3, 1.0),
        ("disputed", "train", 3, 2 / 3),
        ("single", "train", 1, 1.0),
        ("tested", "test", 3, 1.0),
        ("unpredicted", "train", 3, 1.0),
    )
    p = {"unsure": 0.2, "disputed": 0.01, "single": 0.01, "tested": 0.01}
    assert recall_predictions(rows, predictions(rows, p)).empty


def test_the_first_prediction_counts() -> None:
    later = predictions(ROWS, {"e1": 0.99, "h1": 0.01}, model="demo.reward_model@2", hour=2)
    both = recall_predictions(ROWS, pd.concat([later, MADE]))
    pd.testing.assert_frame_equal(both, recall_predictions(ROWS, MADE))


def test_votes_from_before_a_taste_change_are_forgotten() -> None:
    changes = TasteChanges(25)
    memory = recall_predictions(ROWS, MADE, taste_changes=changes)
    assert memory["comparison_id"].tolist() == ["e3", "h1", "h2"]


def test_fixes_and_regressions_are_counted_for_trained_and_held_out_pairs() -> None:
    model = ListedModel("e1 chosen", "e2 chosen", "e3 rejected", "h1 rejected", "h2 chosen")
    counts = retest(recall_predictions(ROWS, MADE), model)
    assert counts.trained == MemoryCounts(n_fixed=1, n_regressed=1)
    assert counts.held_out == MemoryCounts(n_fixed=1, n_still_wrong=1, n_still_right=1)
    assert (counts.still_wrong, counts.regressed) == (("e3",), ("h1",))
    assert ErrorMemory.from_metrics(counts.metrics()) == counts.model_copy(
        update={"still_wrong": (), "regressed": ()}
    )
    assert counts.describe() == (
        "confident predictions re-tested: 1 of 2 errors fixed, 0 of 1 hits lost; of those trained "
        "on 1 of 1 errors fixed, 1 of 1 hits lost"
    )
