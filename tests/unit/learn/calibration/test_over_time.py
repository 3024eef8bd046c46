"""The series of calibration: what a window rests on, what a late vote changes, and what is said of
few or no judgements.
"""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.frames import PREDICTIONS, VOTES, check_frame
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.learn.calibration import (
    OverTimeParams,
    calibration_metrics,
    calibration_over_time,
    over_time_frame,
)
from rlhf_pipeline.learn.calibration.calibration_windows import (
    CALIBRATION_OVER_TIME,
    days_of_window,
)
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.watch.reflection import reflect, served_predictions

DAYS = [f"2026-03-{d:02d}" for d in range(1, 13)]
WEEK = OverTimeParams(window_days=4)
EMPTY_DAY = DAYS[5]


def predicted(
    n: int = 240, seed: int = 0, model: str = "demo.reward_model@1", overconfident: float = 1.0
) -> pd.DataFrame:
    """Predictions of `n` comparisons, two of each prompt, made before any vote."""
    rng = np.random.default_rng(seed)
    margin = rng.normal(0, 1.2, n)
    return check_frame(
        pd.DataFrame(
            {
                "day": DAYS[0],
                "comparison_id": [f"c{i:03d}" for i in range(n)],
                "reward_model": model,
                "calibrator": "none",
                "data_hash": "d",
                "features_hash": "f",
                "score_a": margin,
                "score_b": 0.0,
                "p_raw": 1 / (1 + np.exp(-margin)),
                "p_calibrated": 1 / (1 + np.exp(-overconfident * margin)),
                "predicted_at": datetime(2026, 2, 1, tzinfo=UTC),
            }
        ),
        PREDICTIONS,
    )


def voted(
    predictions: pd.DataFrame,
    day_of: dict[str, str],
    *,
    first_seq: int = 1,
    by: tuple[str, ...] = ("x", "y", "z"),
    seed: int = 1,
):
    """Votes of everybody in `by` on the comparisons of `day_of`, cast on the day it gives them,
    true to p_raw.
    """
    rng = np.random.default_rng(seed)
    p = dict(zip(predictions["comparison_id"], predictions["p_raw"], strict=True))
    rows = [
        {
            "day": day,
            "seq": first_seq + i,
            "vote_id": f"v{first_seq + i}",
            "comparison_id": c,
            "prompt_id": f"p{int(c[1:]) // 2}",
            "annotator_id": name,
            "annotator_kind": "human",
            "choice": "a" if rng.random() < p[c] else "b",
            "strength": 1,
            "repeat_of": None,
            "voted_at": datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
            + timedelta(seconds=i),
            "received_at": datetime(2026, 4, 1, tzinfo=UTC),
        }
        for i, (c, day, name) in enumerate(
            (c, day, name) for c, day in day_of.items() for name in by
        )
    ]
    return check_frame(pd.DataFrame(rows), VOTES)


@pytest.fixture(scope="module")
def world() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions and votes of twelve days, all but one with twenty comparisons and three votes on
    each.
    """
    predictions = predicted()
    day_of = {
        c: DAYS[i // 20]
        for i, c in enumerate(predictions["comparison_id"])
        if DAYS[i // 20] != EMPTY_DAY
    }
    return predictions, voted(predictions, day_of)


def reflect_by_vote_day(predictions: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """As the reflection log has them: a judgement belongs to the day of its vote."""
    rows = reflect(predictions, votes, strict=False)
    return served_predictions(
        rows.assign(
            day=rows["vote_id"]
            .map(dict(zip(votes["vote_id"], votes["day"], strict=True)))
            .fillna(rows["day"])
        )
    )


def series(
    predictions: pd.DataFrame,
    votes: pd.DataFrame,
    params: OverTimeParams = WEEK,
    days: list[str] = DAYS,
):
    return calibration_over_time(
        reflect_by_vote_day(predictions, votes), votes, days, params=params
    )


def test_accuracy_and_error_rate_of_a_window_sum_to_one(
    world,
) -> None:
    predictions, votes = world
    is_near = predictions["p_raw"].between(0.35, 0.65)
    even = predictions.assign(p_calibrated=predictions["p_calibrated"].mask(is_near, 0.5))
    window, before = (series(rows, votes)[8] for rows in (even, predictions))
    inside = votes[votes["day"].between(window.first_day, window.day)]
    error_rate = reflect(even, inside, strict=False)["is_error"].mean()
    assert window.accuracy == before.accuracy
    assert window.accuracy.value == pytest.approx(1 - error_rate)
    assert window.ece != before.ece


def test_window_uses_its_own_days_and_ceiling(world) -> None:
    predictions, votes = world
    windows = series(predictions, votes)
    assert [w.day for w in windows] == DAYS
    nine = windows[8]
    assert (nine.first_day, nine.n_votes, nine.n_comparisons, nine.n_prompts) == (
        EMPTY_DAY,
        3 * 60,
        60,
        30,
    )
    inside = votes[votes["day"].between(nine.first_day, nine.day)]
    p = inside["comparison_id"].map(
        dict(zip(predictions["comparison_id"], predictions["p_calibrated"], strict=True))
    )
    alone = calibration_metrics(
        p, (inside["choice"] == "a").astype(float), groups=inside["prompt_id"].to_numpy()
    )
    assert (nine.ece, nine.brier, nine.accuracy) == (
        alone.ece,
        alone.brier,
        alone.accuracy,
    )
    assert nine.noise_ceiling == noise_ceiling_or_repeats(inside)
    assert nine.noise_ceiling is not None
    assert nine.last_seq == inside["seq"].max()
    assert nine.reward_models == ("demo.reward_model@1",)


def test_ceiling_excludes_unpredicted_comparisons(world) -> None:
    """Those of the days before the first reward model may be of another taste."""
    predictions, votes = world
    known = predictions[predictions["comparison_id"] >= "c020"]
    window = series(known, votes)[1]
    beside = votes["comparison_id"].isin(known["comparison_id"]) & (votes["day"] <= window.day)
    assert window.first_day <= DAYS[0]
    assert window.noise_ceiling == noise_ceiling_or_repeats(votes[beside])


@pytest.mark.parametrize("window_days", [1, 7])
def test_late_vote_changes_only_windows_with_its_day(world, window_days: int) -> None:
    """voted_at of long ago, seq of now."""
    predictions, votes = world
    params, old = OverTimeParams(window_days=window_days), DAYS[3]
    late = voted(
        predictions, {"c070": old, "c071": old}, first_seq=len(votes) + 1, by=("late",), seed=9
    )
    before = over_time_frame(series(predictions, votes, params)).set_index("day")
    after = over_time_frame(series(predictions, pd.concat([votes, late]), params)).set_index("day")
    changed = [day for day in DAYS if not before.loc[day].equals(after.loc[day])]
    assert (
        changed
        == [day for day in DAYS if old in days_of_window(day, params)]
        == DAYS[3 : 3 + window_days]
    )
    assert (after.loc[changed, "n_votes"] == before.loc[changed, "n_votes"] + 2).all()
    assert (after.loc[changed, "last_seq"] == late["seq"].max()).all()
    for figure in ("ece", "brier", "accuracy", "noise_ceiling"):
        assert (after.loc[changed, figure] != before.loc[changed, figure]).any(), figure


def test_windows_without_judgements_are_rows_without_figures(world) -> None:
    predictions, votes = world
    daily = over_time_frame(series(predictions, votes, OverTimeParams(window_days=1))).set_index(
        "day"
    )
    assert list(daily.index) == DAYS
    empty = daily.loc[EMPTY_DAY]
    assert (empty["n_votes"], empty["n_comparisons"], empty["n_prompts"]) == (0, 0, 0)
    assert (
        empty[
            ["reward_models", "last_seq", "accuracy", "noise_ceiling", "ece", "brier", "brier_low"]
        ]
        .isna()
        .all()
    )
    assert daily.drop(EMPTY_DAY)["brier"].notna().all()
    nothing = series(predictions, VOTES.empty_frame())
    assert {w.n_votes for w in nothing} == {0}
    assert over_time_frame(()).equals(CALIBRATION_OVER_TIME.empty_frame())


@pytest.mark.parametrize("n", [1, 5, MIN_PAIRS - 1, MIN_PAIRS, MIN_PAIRS + 4])
def test_small_window_never_shows_a_bare_number(n: int) -> None:
    predictions = predicted(n)
    (window,) = series(
        predictions,
        voted(predictions, dict.fromkeys(predictions["comparison_id"], DAYS[0])),
        days=[DAYS[0]],
    )
    assert (window.n_comparisons, window.n_votes) == (n, 3 * n)
    for figure in (window.ece, window.brier, window.accuracy, window.noise_ceiling):
        assert (figure is None) == (n < MIN_PAIRS)
        assert figure is None or figure.low < figure.high
        assert figure is None or figure.low <= figure.value <= figure.high


def test_overconfidence_and_new_model_are_dated(world) -> None:
    predictions, votes = world
    new = predicted(model="demo.reward_model@2", overconfident=4.0)
    served = pd.concat([predictions.iloc[:160], new.iloc[160:]])
    windows = {w.day: w for w in series(served, votes, OverTimeParams(window_days=2))}
    last, before = windows[DAYS[11]], windows[DAYS[7]]
    assert before.reward_models == ("demo.reward_model@1",)
    first = windows[DAYS[8]]  # its other day is of the earlier model
    assert first.reward_models == ("demo.reward_model@2",)
    assert first.n_votes == last.n_votes / 2
    assert last.reward_models == ("demo.reward_model@2",)
    assert last.ece.value > before.ece.high
    assert last.brier.value > before.brier.value
