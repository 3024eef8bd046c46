"""The losses of PPO, on numbers worked out by hand."""

import math

import pytest
import torch

from rlhf_pipeline.improve.retraining.strategies.ppo import (
    PPOParams,
    clipped_policy_loss,
    loss_of_both,
)

LOG_2 = math.log(2)


def rollouts(*, values=0.0, advantages=0.0, returns=0.0, mask=1.0):
    """Tokens that were drawn with a log probability of 0."""
    rows = [torch.tensor([each]).reshape(1, -1) for each in (values, advantages, returns, mask)]
    values, advantages, returns, mask = torch.broadcast_tensors(*rows)
    return {
        "mask": mask,
        "log_p": torch.zeros_like(values),
        "advantages": advantages,
        "returns": returns,
    }


def policy_loss(log_ratio, advantage):
    """The loss of one token, and its gradient by the log probability."""
    log_p = torch.tensor([[log_ratio]], requires_grad=True)
    loss = clipped_policy_loss(log_p, rollouts(advantages=advantage), 0.2)
    loss.backward()
    return loss.item(), log_p.grad.item()


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "gradient"),
    [
        (0.0, 3.0, -3.0, -3.0),
        (LOG_2, 1.0, -1.2, 0.0),  # a good token, twice as likely already: no further gain
        (-LOG_2, 1.0, -0.5, -0.5),  # a good token that became less likely is raised
        (-LOG_2, -1.0, 0.8, 0.0),  # a bad token, half as likely already: no further gain
        (LOG_2, -1.0, 2.0, 2.0),  # a bad token that became more likely is lowered
    ],
)
def test_clipped_ratio_has_no_gradient(log_ratio, advantage, loss, gradient):
    assert policy_loss(log_ratio, advantage) == pytest.approx((loss, gradient))


def test_the_value_head_learns_beside_the_policy():
    values = torch.tensor([[0.9]], requires_grad=True)
    log_p = torch.tensor([[LOG_2]])
    batch = rollouts(advantages=1.0, returns=1.0)
    params = PPOParams(clip_range=0.5, value_weight=0.2)
    loss, value_loss = loss_of_both(log_p, values, batch, params)
    # a ratio of at most 1.5; half of (0.9 - 1)²
    assert (loss.item(), value_loss.item()) == pytest.approx((-1.5 + 0.2 * 0.005, 0.005))
    loss.backward()
    assert values.grad.item() == pytest.approx(0.2 * -0.1)


def test_tokens_after_the_end_have_no_loss():
    batch = rollouts(advantages=[1.0, 9.0], returns=[1.0, 9.0], mask=[1.0, 0.0])
    zeros = torch.zeros(1, 2)
    loss, value_loss = loss_of_both(zeros, zeros, batch, PPOParams(value_weight=0.0))
    assert (float(loss), float(value_loss)) == pytest.approx((-1.0, 0.5))
