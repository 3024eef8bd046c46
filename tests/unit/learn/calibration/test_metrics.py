import numpy as np
import pytest

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.intervals import BootstrapParams
from rlhf_pipeline.learn.calibration.metrics import (
    FoldedRows,
    binned_gap,
    brier,
    ece,
    log_loss,
)
from rlhf_pipeline.learn.calibration.monitoring import ece_lower_bound, overconfidence_p_value
from rlhf_pipeline.learn.calibration.slope import (
    LARGEST,
    calibration_slope,
    slope_bounds,
)
from rlhf_pipeline.learn.calibration.summary import calibration_metrics, reliability_table


def logistic(x):
    return 1 / (1 + np.exp(-x))


def world(seed: int, n: int = 200, sharpen: float = 1.0, sd: float = 1.5):
    """Stated probabilities and outcomes of a model whose logits are the true ones times
    `sharpen`.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sd, n)
    return logistic(sharpen * logits), (rng.random(n) < logistic(logits)).astype(float)


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_few_groups_widen_the_interval_and_are_reported(n_groups):
    rng = np.random.default_rng(3)
    p = rng.uniform(0.5, 0.9, 120)
    y = (rng.random(120) < p).astype(float)
    each = calibration_metrics(p, y)
    few = calibration_metrics(p, y, groups=np.arange(120) % n_groups)
    for name in ("accuracy", "binned_gap", "brier", "log_loss"):
        wide, narrow = getattr(each, name), getattr(few, name)
        assert narrow.value == wide.value
        assert narrow.high - narrow.low > 0.7 * (wide.high - wide.low)
        assert (wide.few_groups, narrow.few_groups) == (None, n_groups)
    assert str(few.accuracy).endswith(f"] within {n_groups} group{'s' if n_groups > 1 else ''}")


def test_accuracy_uses_the_side_with_the_higher_score():
    """Calibration made every third p 0.5, which counts half right in all other measures."""
    raw, y = world(7)
    p = np.where(np.arange(200) % 3, raw, 0.5)
    right = np.where(raw > 0.5, y, 1 - y)
    by_score, by_p = calibration_metrics(p, y, right=right), calibration_metrics(p, y)
    assert by_score.accuracy == calibration_metrics(raw, y).accuracy
    assert by_score.accuracy.value == pytest.approx(right.mean())
    assert by_score.accuracy.value != pytest.approx(by_p.accuracy.value)
    assert by_score.model_copy(update={"accuracy": by_p.accuracy}) == by_p
    for wrong in (right[1:], right + 0.5, right * np.nan):
        with pytest.raises(InvalidScores, match="shares right"):
            calibration_metrics(p, y, right=wrong)


def test_ece_is_the_gap_between_confidence_and_accuracy():
    p, y = np.full(100, 0.9), np.r_[np.ones(70), np.zeros(30)]
    assert binned_gap(p, y) == pytest.approx(0.2)


def test_coin_has_brier_a_quarter_and_log_loss_log_two():
    p, y = np.full(10, 0.5), np.r_[np.ones(3), np.zeros(7)]
    assert brier(p, y) == pytest.approx(0.25)
    assert log_loss(p, y) == pytest.approx(np.log(2))
    assert np.isfinite(log_loss([1.0], [0.0]))


def test_metrics_do_not_depend_on_the_side_called_a():
    p, y = world(0)
    flip = np.random.default_rng(5).random(200) < 0.5
    swapped = np.where(flip, 1 - p, p), np.where(flip, 1 - y, y)
    for metric in (binned_gap, ece, brier, log_loss):
        assert metric(p, y) == pytest.approx(metric(*swapped))
    assert calibration_slope(p, y).value == pytest.approx(calibration_slope(*swapped).value)


def test_debiasing_removes_most_of_the_noise():
    plain, debiased = (
        np.mean([metric(*world(seed, 300)) for seed in range(60)]) for metric in (binned_gap, ece)
    )
    assert plain > 0.045
    assert debiased < 0.65 * plain
    far = [
        (binned_gap(*world(s, 300, sharpen=3)), ece(*world(s, 300, sharpen=3))) for s in range(30)
    ]
    assert abs(np.mean(far, axis=0)[1] - binned_gap(*world(99, 200_000, sharpen=3))) < 0.015


def test_lower_bound_of_ece_has_nominal_coverage():
    # 2.5 % are promised; 5 % of 200 seeds is where chance no longer explains more.
    for n in (60, 200, 800):
        assert (
            np.mean(
                [
                    ece_lower_bound(*world(seed, n), seed=seed, n_resamples=300) > 0
                    for seed in range(200)
                ]
            )
            <= 0.05
        )
    truth = binned_gap(*world(99, 200_000, sharpen=2.5))
    bounds = np.array(
        [ece_lower_bound(*world(seed, 400, sharpen=2.5), seed=seed) for seed in range(100)]
    )
    assert (bounds < truth).mean() >= 0.97
    assert (bounds > 0).mean() >= 0.9


def test_the_reliability_table_counts_every_row_once():
    p, y = world(3, 500)
    table = reliability_table(p, y)
    assert sum(row.n for row in table) == 500
    assert all(row.accuracy_low <= row.accuracy <= row.accuracy_high for row in table)
    assert all(row.low <= row.mean_confidence <= row.high for row in table)


@pytest.mark.parametrize(
    "metric",
    [
        binned_gap,
        ece,
        brier,
        log_loss,
        calibration_slope,
        ece_lower_bound,
    ],
)
def test_nan_out_of_range_and_empty_input_are_refused(metric):
    with pytest.raises(InvalidScores, match="NaN"):
        metric([0.4, float("nan")], [1, 0])
    with pytest.raises(InvalidScores, match="between 0 and 1"):
        metric([0.4, 1.7], [1, 0])
    with pytest.raises(NotEnoughData):
        metric([], [])
    with pytest.raises(InvalidScores, match="2 probabilities"):
        metric([0.4, 0.7], [1])


def test_coins_and_a_single_prompt_have_no_slope():
    with pytest.raises(NotEnoughData):
        calibration_slope(np.full(50, 0.5), np.ones(50))
    with pytest.raises(NotEnoughData):
        calibration_slope(*world(0), groups=["one"] * 200)


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_unanimous_votes_have_one_bound_and_no_slope(right):
    p, y = np.linspace(0.6, 0.9, 40), np.full(40, right)
    with pytest.raises(NotEnoughData, match="with the model" if right else "against the model"):
        calibration_slope(p, y)
    assert calibration_metrics(p, y).slope is None
    low, high = slope_bounds(FoldedRows.from_predictions(p, y))
    assert (low == -LARGEST) == (right == 0.0)
    assert (high == LARGEST) == (right == 1.0)
    finite = low if right else high
    assert -3 < finite < 3  # 40 votes say that it is not far below, or above
    assert (overconfidence_p_value(p, y) < 0.025) == (right == 0.0)
    # Three votes of a comparison that say the same are not three.
    alike = slope_bounds(FoldedRows.from_predictions(p, y, groups=np.arange(40) // 4))
    assert alike[0] < low or alike[1] > high


def twelve(seed, sharpen, votes, sd=1.5):
    """A group of 12 comparisons: probabilities, outcomes and comparisons of the votes, and the ECE
    in truth.
    """
    rng = np.random.default_rng(seed)
    logits, of = rng.normal(0, sd, 12), np.repeat(np.arange(12), votes)
    y = (rng.random(len(of)) < logistic(logits[of])).astype(float)
    return (
        logistic(sharpen * logits)[of],
        y,
        of,
        np.abs(logistic(sharpen * logits) - logistic(logits)).mean(),
    )


@pytest.mark.parametrize("sd", [1.0, 1.5, 2.5])
@pytest.mark.parametrize("votes", [1, 3])
@pytest.mark.parametrize("sharpen", [1.0, 3.0])
def test_small_group_slope_is_covered_or_missing(sharpen, votes, sd):
    coverage = []
    for seed in range(300):
        p, y, of, _ = twelve(seed, sharpen, votes, sd)
        try:
            slope = calibration_slope(p, y, groups=of)
        except NotEnoughData:
            continue
        assert slope.low < slope.value < slope.high
        coverage.append(slope.low <= 1 / sharpen <= slope.high)
    assert np.mean(coverage) >= 0.9
    assert len(coverage) > 150


@pytest.mark.parametrize("n", [2, 15])
@pytest.mark.parametrize(("p", "right"), [(0.9, 1.0), (0.6, 0.0), (1 - 1e-7, 0.0)])
def test_unanimous_rows_are_not_certainty(n, p, right):
    metrics = calibration_metrics(np.full(n, p), np.full(n, right))
    for name in (
        "accuracy",
        "ece",
        "binned_gap",
        "brier",
        "log_loss",
    ):
        interval = getattr(metrics, name)
        assert interval.low < interval.high, name
        assert interval.low <= interval.value <= interval.high
    assert metrics.ece.high <= 1.0
    assert metrics.slope is None
    # What the other votes of a calibrated model could have been is no miscalibration: 15 of 15 at
    # 0.9 are every fifth such draw.
    assert (metrics.ece.low == 0.0) == (p == 0.9 or (p == 0.6 and n == 2))


def test_slope_and_debiased_ece_have_nominal_coverage():
    for sharpen in (1.0, 2.0):
        truth = binned_gap(*world(99, 200_000, sharpen))
        measurements = [
            calibration_metrics(*world(seed, 400, sharpen), params=BootstrapParams(n_resamples=200))
            for seed in range(60)
        ]
        # 95 % are promised; of 60, chance alone leaves 83 % or more in 999 of 1000 trials.
        assert np.mean([m.slope.low <= 1 / sharpen <= m.slope.high for m in measurements]) >= 0.83
        assert (
            np.mean([m.ece.low <= truth + 0.002 and truth <= m.ece.high for m in measurements])
            >= 0.83
        )


@pytest.mark.parametrize("n", [50, 100])
def test_unanimous_bins_do_not_flag_a_calibrated_model(n):
    measurements = [
        calibration_metrics(*world(seed, n, sd=3.0), params=BootstrapParams(n_resamples=200))
        for seed in range(150)
    ]
    # without the noise of such bins: 9 and 5 %
    assert np.mean([m.ece.low > 0 for m in measurements]) <= 0.025


def test_overconfidence_test_fires_on_doubled_logits():
    fired = {
        s: np.mean([overconfidence_p_value(*world(n, 200, s, sd=1.0)) < 0.025 for n in range(200)])
        for s in (1.0, 2.0, 0.5)
    }
    assert fired[1.0] <= 0.05
    assert fired[2.0] >= 0.90
    assert fired[0.5] == 0  # timid is not bold


def test_uninformative_slope_is_withheld():
    outcomes = np.array([1.0, 0.0, 1.0, 1.0])
    assert calibration_metrics(np.array([0.501, 0.502, 0.499, 0.503]), outcomes).slope is None
    assert calibration_metrics(np.array([0.6, 0.7, 0.4, 0.8]), outcomes).slope is not None
