from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.learn.calibration import CALIBRATORS, evidently_calibration_report
from rlhf_pipeline.watch.reflection import judged_predictions, predict, reflect

PUBLISHED = datetime(2026, 1, 1, 9, tzinfo=UTC)


class LengthModel:
    """Prefers the longer completion."""

    def score(self, prompts, completions, *, progress=None):
        return np.array([float(len(c)) for c in completions])


class NanModel:
    def score(self, prompts, completions, *, progress=None):
        return np.full(len(completions), np.nan)


def comparisons(**texts: tuple[str, str]) -> pd.DataFrame:
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": c,
            "prompt_id": f"prompt-{c}",
            "prompt": "ask",
            "completion_a_id": f"{c}a",
            "completion_b_id": f"{c}b",
            "completion_a": a,
            "completion_b": b,
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            "category": "factual",
            "repeat_of": None,
            "position": i,
            "seed": 0,
        }
        for i, (c, (a, b)) in enumerate(texts.items())
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(*cast: tuple[str, str, str]) -> pd.DataFrame:
    moment = pd.Timestamp("2026-01-01T10:00Z")
    rows = [
        {
            "day": "2026-01-01",
            "seq": i + 1,
            "vote_id": f"v{i}",
            "comparison_id": c,
            "prompt_id": f"prompt-{c}",
            "annotator_id": who,
            "annotator_kind": "human",
            "choice": choice,
            "strength": 2 if choice in "ab" else None,
            "repeat_of": None,
            "voted_at": moment,
            "received_at": moment,
        }
        for i, (c, who, choice) in enumerate(cast)
    ]
    return check_frame(pd.DataFrame(rows), VOTES) if rows else VOTES.empty_frame()


SHOWN = comparisons(c1=("long text", "short"), c2=("x", "much longer"), c3=("same", "size"))


def predicted(
    frame: pd.DataFrame = SHOWN, label: str = "demo.reward_model@1", **more
) -> pd.DataFrame:
    return predict(
        frame,
        LengthModel(),
        reward_model_label=label,
        calibrator_version="none",
        data_hash="d",
        predicted_at=PUBLISHED,
        **more,
    )


def test_a_prediction_names_its_model_and_subject():
    rows = predicted()
    first = rows.iloc[0]
    assert (first["reward_model"], first["calibrator"], first["data_hash"]) == (
        "demo.reward_model@1",
        "none",
        "d",
    )
    assert first["p_raw"] == pytest.approx(1 / (1 + np.exp(-4)))
    assert first["p_calibrated"] == first["p_raw"]
    assert rows["features_hash"].nunique() == 3
    assert (
        predicted(comparisons(c9=("long text", "short")))["features_hash"][0]
        == first["features_hash"]
    )


def test_calibration_moves_only_the_calibrated_probability():
    calibrator = CALIBRATORS["temperature"].from_json({"temperature": 2.0})
    rows = predicted(calibrator=calibrator)
    assert rows["p_calibrated"][0] == pytest.approx(1 / (1 + np.exp(-2)))
    assert rows["p_raw"][0] == predicted()["p_raw"][0]


def test_nan_scores_are_refused():
    with pytest.raises(InvalidScores):
        predict(
            SHOWN,
            NanModel(),
            reward_model_label="m@1",
            calibrator_version="none",
            data_hash="d",
            predicted_at=PUBLISHED,
        )


def test_every_prediction_has_a_row_and_every_vote_its_own():
    rows = reflect(predicted(), votes(("c1", "x", "a"), ("c1", "y", "b")))
    assert rows["comparison_id"].tolist() == ["c1", "c1", "c2", "c3"]
    assert rows["is_error"].tolist()[:2] == [False, True]
    assert rows["vote_id"].isna().tolist() == [False, False, True, True]
    assert rows["is_error"].isna().tolist() == [False, False, True, True]


def test_ties_and_equal_scores_are_neither_errors_nor_successes():
    rows = reflect(predicted(), votes(("c1", "x", "tie"), ("c2", "x", "skip"), ("c3", "x", "a")))
    assert rows["is_error"].isna().all()
    assert judged_predictions(rows).empty


def test_a_vote_without_a_prediction_is_reported():
    cast = votes(("c1", "x", "a"), ("c7", "x", "a"))
    with pytest.raises(UnknownComparison, match="v1 judges comparison c7"):
        reflect(predicted(), cast)
    assert len(reflect(predicted(), cast, strict=False)) == 3


def test_judged_predictions_are_in_order_of_seq_and_fit_for_evidently():
    cast = votes(*[(c, f"w{i}", "ab"[i % 2]) for i in range(30) for c in ("c1", "c2")])
    predictions = judged_predictions(reflect(predicted(), cast))
    assert predictions["seq"].is_monotonic_increasing
    assert set(predictions["error"]) == {0.0, 1.0}
    assert (
        predictions.loc[predictions["group"] == "c1", "outcome"]
        == 1 - predictions.loc[predictions["group"] == "c1", "error"]
    ).all()
    assert not evidently_calibration_report(predictions).passed


def test_a_model_is_not_compared_with_its_own_votes():
    people = votes(("c1", "x", "b"))
    machine = votes(("c2", "demo.reward_model@1", "b")).assign(
        annotator_kind="machine", seq=9, vote_id="m"
    )
    rows = reflect(predicted(), pd.concat([people, machine]))
    pd.testing.assert_frame_equal(rows, reflect(predicted(), people))
    assert judged_predictions(rows)["error"].tolist() == [1.0]
