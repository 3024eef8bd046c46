"""Reference and current windows: what goes in, and that they survive a folder."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import ArtefactError, FrameError, InvalidScores
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.watch.drift.reference import (
    Window,
    current_window,
    judge_votes,
    reference_window,
)
from rlhf_pipeline.watch.drift.words import hash_words

MODEL = "demo.reward_model@1"


def lengths_as_embeddings(prompts, completions):
    return np.array([[len(p), len(c), 1.0] for p, c in zip(prompts, completions, strict=True)])


def pairs(n: int = 6) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "comparison_id": [f"c{i:02d}" for i in range(n)],
            "prompt_id": [f"p{i // 2}" for i in range(n)],
            "prompt": ["q" * (3 + i // 2) for i in range(n)],
            "chosen": ["chosen" for _ in range(n)],
            "rejected": ["rejected" for _ in range(n)],
            "chosen_side": ["a" if i % 2 == 0 else "b" for i in range(n)],
            "agreement": [1.0, 1.0, 0.75, 0.75, 1.0, 1.0][:n],
            "n_votes": [1, 1, 4, 4, 1, 1][:n],
            "split": "calib",
            "max_seq": range(10, 10 + n),
            "category": "factual",
        }
    )


def window(**more):
    return reference_window(
        pairs(), np.array([0.9, 0.2, 0.8, 0.3, 0.5, 0.6]), model_version=MODEL, **more
    )


def log_and_comparisons() -> tuple[pd.DataFrame, pd.DataFrame]:
    log = pd.DataFrame(
        {
            "comparison_id": ["c1", "c1", "c2", "c3", "c4"],
            "reward_model": [MODEL] * 4 + ["other@9"],
            "p_calibrated": [0.7, 0.7, 0.4, 0.6, 0.9],
            "is_error": pd.array([True, False, False, None, True], dtype="boolean"),
            "score_a": [1.5, 1.5, -0.5, 0.2, 3.0],
            "vote_id": ["v1", "v2", "v3", "v4", "v5"],
            "annotator_id": ["ann", "ben", "ann", "ben", "ann"],
            "choice": ["b", "a", "b", "tie", "a"],
            "strength": pd.array([None, 3, 2, None, 1], dtype="Int64"),
        }
    )
    comparisons = pd.DataFrame(
        {
            "comparison_id": ["c1", "c2", "c3"],
            "prompt_id": ["p1", "p1", "p2"],
            "prompt": ["hello", "hello", "x"],
            "completion_a": ["one", "four", "y"],
            "category": ["factual", "factual", "code"],
            "source": [None, None, "hh"],
        }
    )
    return log, comparisons


def test_errors_of_the_reference_count_single_votes_not_majorities():
    assert window().rows["error"].tolist() == [0.0, 1.0, 0.25, 0.75, 0.5, 0.0]


def test_the_reference_shows_side_a_as_the_annotator_saw_it():
    rows = window().rows
    assert rows["p"].tolist() == pytest.approx([0.9, 0.8, 0.8, 0.7, 0.5, 0.4])
    assert rows["completion_length"].tolist() == [6, 8, 6, 8, 6, 8]


def test_one_comparison_per_prompt_is_embedded_and_compared():
    reference = window(embed=lengths_as_embeddings)
    assert reference.embeddings.dtype == np.float32
    assert reference.embeddings.shape == (3, 3)
    assert reference.rows["embedding_row"].tolist() == [0, -1, 1, -1, 2, -1]
    assert reference.one_row_per_prompt()["prompt_id"].tolist() == ["p0", "p1", "p2"]
    assert window(embed=lengths_as_embeddings, max_embeddings=2).embeddings.shape == (2, 3)


def test_pairs_before_the_change_stay_out():
    assert window(taste_changes=TasteChanges(13)).rows["comparison_id"].tolist() == [
        "c03",
        "c04",
        "c05",
    ]


def test_a_training_pair_may_not_enter_the_reference():
    with pytest.raises(FrameError, match="c02 is of split train"):
        reference_window(
            pairs().assign(split=["calib", "calib", "train", "calib", "calib", "calib"]),
            np.full(6, 0.5),
            model_version=MODEL,
        )


@pytest.mark.parametrize("bad", [np.nan, 1.2, -0.1])
def test_prediction_outside_0_to_1_is_refused(bad):
    with pytest.raises(InvalidScores, match="row 1"):
        reference_window(pairs(), np.array([0.5, bad, 0.5, 0.5, 0.5, 0.5]), model_version=MODEL)
    with pytest.raises(InvalidScores, match="6 rows"):
        reference_window(pairs(), np.array([0.5]), model_version=MODEL)


def test_the_current_window_has_one_row_per_judged_comparison_of_the_model():
    log, comparisons = log_and_comparisons()
    current = current_window(log, comparisons, model_version=MODEL, embed=lengths_as_embeddings)
    rows = current.rows[
        [
            "comparison_id",
            "prompt_id",
            "prompt_length",
            "completion_length",
            "p",
            "error",
            "n_votes",
        ]
    ]
    assert rows.values.tolist() == [
        ["c1", "p1", 5, 3, 0.7, 0.5, 2],
        ["c2", "p1", 5, 4, 0.4, 0.0, 1],
    ]
    assert current.embeddings.tolist() == [[5.0, 3.0, 1.0]]
    assert current.rows["score"].tolist() == [1.5, -0.5]
    assert current.rows["prompt_words"].tolist() == [hash_words("hello"), np.nan]
    assert current.rows["completion_words"].tolist() == [hash_words("one"), np.nan]
    assert {*current.words.values()} == {"hello", "one"}


def test_one_vote_per_prompt_is_counted_ties_included():
    log, comparisons = log_and_comparisons()
    current = current_window(log, comparisons, model_version=MODEL)
    assert current.mixes == {
        "choices": {"b": 1, "tie": 1},
        "strengths": {"3": 1},
        "annotators": {"ann": 1, "ben": 1},
        "prompt_mix": {"factual": 1, "hh: code": 1},
    }
    with pytest.raises(FrameError, match="first c3"):
        current_window(log, comparisons.iloc[:2], model_version=MODEL)


def test_a_day_without_votes_is_an_empty_window():
    log, comparisons = log_and_comparisons()
    current = current_window(
        log.iloc[:0], comparisons, model_version=MODEL, embed=lengths_as_embeddings
    )
    assert current.rows.empty
    assert len(current.embeddings) == 0
    assert current.one_row_per_prompt().empty


def test_window_round_trips_with_equal_bytes(tmp_path):
    reference = window(embed=lengths_as_embeddings, mixes={"choices": {"a": 4, "tie": 2}})
    reference.save(tmp_path / "one")
    reference.save(tmp_path / "two")
    reference.save(tmp_path / "two")  # again: replaced, nothing left over
    again = Window.load(tmp_path / "one")
    assert again.model_version == MODEL
    assert again.mixes == reference.mixes
    pd.testing.assert_frame_equal(again.rows, reference.rows)
    np.testing.assert_array_equal(again.embeddings, reference.embeddings)
    assert folder_hash(tmp_path / "one") == folder_hash(tmp_path / "two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("name", ["window.parquet", "embeddings.npy", "window.json"])
def test_a_lost_or_broken_file_is_a_named_error(tmp_path, name):
    folder = tmp_path / "w"
    window(embed=lengths_as_embeddings).save(folder)
    (folder / name).write_bytes(b"\x80\x04broken")
    with pytest.raises(
        ArtefactError, match="delete the folder and calibrate its reward model again"
    ):
        Window.load(folder)
    (folder / name).unlink()
    with pytest.raises(ArtefactError, match=str(folder)):
        Window.load(folder)


def test_a_pickle_among_the_files_is_never_executed(tmp_path):
    folder = tmp_path / "w"
    window(embed=lengths_as_embeddings).save(folder)
    file = folder / "embeddings.npy"
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    meta = json.loads((folder / "window.json").read_text())
    meta["embeddings_hash"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "window.json").write_text(json.dumps(meta))
    with pytest.raises(ArtefactError, match="allow_pickle"):
        Window.load(folder)


def test_votes_on_the_reference_become_errors_of_its_predictions():
    votes = pd.DataFrame(
        {
            "annotator_id": ["ann", "ben", "ann", "ann", "ann"],
            "comparison_id": ["c00", "c00", "c04", "c05", "c99"],
            "category": "factual",
            "choice": ["a", "b", "a", "tie", "a"],
        }
    )
    errors = judge_votes(
        votes, window().rows.set_index("comparison_id")["p"]
    )  # c00: p of side a is .9; c04: .5
    assert errors["comparison_id"].tolist() == ["c00", "c00"]
    assert errors["expected_error"].tolist() == pytest.approx([0.1, 0.1])
    assert errors["error"].tolist() == [0, 1]
