import numpy as np
import pytest
import torch

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.reward_model.losses import (
    LOSSES,
    LossParams,
    Targets,
    pair_losses,
    slopes,
)

MARGINS = np.array([-700.0, -3.0, -0.4, 0.0, 0.2, 1.5, 6.0, 700.0])
TARGETS = Targets(
    p=np.array([0.0, 1.0, 0.3, 0.5, 0.8, 1.0, 0.6, 1.0]),
    ties=np.array([0.0, 0.2, 0.5, 1.0, 0.0, 0.4, 0.1, 0.0]),
    strength=np.array([1.0, 0.25, 0.5, 0.0, 0.75, 1.0, 0.1, 0.0]),
)
WIDTH = 0.3


def log_logistic(x: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, -x)


def test_bradley_terry_takes_the_preferred_side_as_certain():
    found = pair_losses(MARGINS, TARGETS, LossParams(loss="bradley_terry"))
    expected = -np.where(TARGETS.p > 0.5, log_logistic(MARGINS), log_logistic(-MARGINS))
    expected[3] = np.log(2)  # split evenly
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_soft_is_the_cross_entropy_with_the_share():
    found = pair_losses(MARGINS, TARGETS, LossParams(loss="soft"))
    p = TARGETS.p
    entropy = np.array(
        [0.0 if q in (0.0, 1.0) else -q * np.log(q) - (1 - q) * np.log(1 - q) for q in p]
    )
    np.testing.assert_allclose(
        found, -p * log_logistic(MARGINS) - (1 - p) * log_logistic(-MARGINS), rtol=1e-12
    )
    assert (found >= entropy - 1e-12).all()
    at_best = pair_losses(np.log(p[2:3] / (1 - p[2:3])), Targets(p[2:3]), LossParams(loss="soft"))
    assert at_best[0] == pytest.approx(entropy[2])


def test_margin_is_content_only_once_it_is_ahead_by_the_strength():
    params = LossParams(loss="margin", margin_scale=2.0)
    found = pair_losses(MARGINS, TARGETS, params)
    toward = np.where(TARGETS.p > 0.5, 1.0, -1.0)
    expected = -log_logistic(toward * MARGINS - 2.0 * TARGETS.strength)
    expected[3] = np.log(2)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    without = pair_losses(MARGINS, Targets(TARGETS.p), params)
    np.testing.assert_array_equal(
        without, pair_losses(MARGINS, TARGETS, LossParams(loss="bradley_terry"))
    )


def test_davidson_is_the_log_chance_of_three_outcomes():
    """Davidson 1970, equations 2.1 to 2.3 with worths exp(score): ties weigh width * sqrt(worth *
    worth).
    """
    worth_a = np.exp(1.5)
    worth_b = np.exp(0.2)
    width = np.exp(WIDTH)
    total = worth_a + worth_b + width * np.sqrt(worth_a * worth_b)
    chances = {
        "a": worth_a / total,
        "b": worth_b / total,
        "tie": width * np.sqrt(worth_a * worth_b) / total,
    }
    margin, params = np.array([1.3]), LossParams(loss="davidson")
    for said, target in (
        ("a", Targets([1.0], [0.0])),
        ("b", Targets([0.0], [0.0])),
        ("tie", Targets([0.5], [1.0])),
    ):
        found = pair_losses(
            margin, Targets(np.array(target.p), np.array(target.ties)), params, log_tie_width=WIDTH
        )
        assert found[0] == pytest.approx(-np.log(chances[said]))
    no_ties = Targets(np.array([0.5]))
    by_width = slopes(margin, no_ties, params, log_tie_width=WIDTH)[1]
    assert by_width[0] == pytest.approx(chances["tie"])
    # Among those who take a side it is Bradley and Terry's: the margin means the same under every
    # loss.
    assert chances["a"] / (chances["a"] + chances["b"]) == pytest.approx(1 / (1 + np.exp(-1.3)))


def test_davidson_with_hardly_any_ties_is_the_soft_loss():
    found = pair_losses(
        MARGINS[1:-1], Targets(TARGETS.p[1:-1]), LossParams(loss="davidson"), log_tie_width=-30.0
    )
    np.testing.assert_allclose(
        found,
        pair_losses(MARGINS[1:-1], Targets(TARGETS.p[1:-1]), LossParams(loss="soft")),
        atol=1e-12,
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_torch_and_numpy_agree_and_autograd_gives_the_slopes(loss):
    params = LossParams(loss=loss)
    margins = torch.tensor(MARGINS, dtype=torch.float64, requires_grad=True)
    width = torch.tensor(WIDTH, dtype=torch.float64, requires_grad=True)
    losses = pair_losses(
        margins, TARGETS.to_torch(dtype=torch.float64), params, log_tie_width=width
    )
    np.testing.assert_allclose(
        losses.detach().numpy(),
        pair_losses(MARGINS, TARGETS, params, log_tie_width=WIDTH),
        rtol=1e-12,
    )
    by_margin, by_width = slopes(MARGINS, TARGETS, params, log_tie_width=WIDTH)
    losses.sum().backward()
    np.testing.assert_allclose(by_margin, margins.grad.numpy(), atol=1e-12)
    assert by_width.sum() == pytest.approx(
        0.0 if width.grad is None else float(width.grad), abs=1e-12
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_swapping_both_sides_changes_nothing(loss):
    params = LossParams(loss=loss)
    swapped = Targets(1 - TARGETS.p, TARGETS.ties, TARGETS.strength)
    np.testing.assert_allclose(
        pair_losses(-MARGINS, swapped, params, log_tie_width=WIDTH),
        pair_losses(MARGINS, TARGETS, params, log_tie_width=WIDTH),
        rtol=1e-12,
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_slopes_are_those_of_the_losses(loss):
    params = LossParams(loss=loss)
    step = 1e-6
    m = np.linspace(-4, 4, 8)
    above, below = (pair_losses(m + d, TARGETS, params, log_tie_width=WIDTH) for d in (step, -step))
    np.testing.assert_allclose(
        slopes(m, TARGETS, params, log_tie_width=WIDTH)[0], (above - below) / (2 * step), atol=1e-8
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_huge_margins_give_finite_losses_and_slopes_in_single_precision(loss):
    margins = torch.tensor([-500.0, 500.0], requires_grad=True)
    losses = pair_losses(
        margins,
        Targets(torch.tensor([1.0, 1.0])),
        LossParams(loss=loss),
        log_tie_width=torch.tensor(0.0),
    )
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(margins.grad).all()


def test_davidson_without_a_tie_width_names_the_cure():
    with pytest.raises(ConfigurationError, match="log_tie_width"):
        pair_losses(MARGINS, TARGETS, LossParams(loss="davidson"))


def test_rows_of_targets_are_selected_together():
    some = TARGETS.select(np.array([1, 4]))
    assert (some.p.tolist(), some.ties.tolist(), some.strength.tolist()) == (
        [1.0, 0.8],
        [0.2, 0.0],
        [0.25, 0.75],
    )
    assert Targets(TARGETS.p).select(slice(2)).ties is None
