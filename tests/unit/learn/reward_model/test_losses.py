import numpy as np
import pytest
import torch

from rlhf_pipeline.learn.reward_model.losses import pair_losses, slopes

MARGINS = np.array([-700.0, -3.0, -0.4, 0.0, 0.2, 1.5, 6.0, 700.0])
TARGETS = np.array([0.0, 1.0, 0.3, 0.5, 0.8, 1.0, 0.6, 1.0])


def log_logistic(x: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, -x)


def test_the_loss_is_the_cross_entropy_with_the_share():
    losses = pair_losses(MARGINS, TARGETS)
    p = TARGETS
    np.testing.assert_allclose(
        losses, -p * log_logistic(MARGINS) - (1 - p) * log_logistic(-MARGINS), rtol=1e-12
    )
    entropy = -0.3 * np.log(0.3) - 0.7 * np.log(0.7)
    assert pair_losses(np.log(p[2:3] / (1 - p[2:3])), p[2:3])[0] == pytest.approx(entropy)
    # swapping both sides changes nothing
    np.testing.assert_allclose(pair_losses(-MARGINS, 1 - p), losses, rtol=1e-12)


def test_torch_and_numpy_agree_and_autograd_gives_the_slopes():
    margins = torch.tensor(MARGINS, dtype=torch.float64, requires_grad=True)
    losses = pair_losses(margins, torch.tensor(TARGETS, dtype=torch.float64))
    np.testing.assert_allclose(losses.detach().numpy(), pair_losses(MARGINS, TARGETS), rtol=1e-12)
    losses.sum().backward()
    np.testing.assert_allclose(slopes(MARGINS, TARGETS), margins.grad.numpy(), atol=1e-12)


def test_huge_margins_give_finite_losses_and_slopes_in_single_precision():
    margins = torch.tensor([-500.0, 500.0], requires_grad=True)
    losses = pair_losses(margins, torch.ones(2))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(margins.grad).all()
