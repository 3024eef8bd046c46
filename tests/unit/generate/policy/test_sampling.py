import numpy as np
import pytest
import torch

from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.generate.policy.sampling import CPUNoise, DeviceNoise, choose_tokens, open_noise


def choose(logits, temperature, top_p, noise):
    """The tokens as an array."""
    tensors = (torch.as_tensor(np.asarray(part)).double() for part in (logits, temperature, top_p))
    return choose_tokens(*tensors, torch.as_tensor(noise)).numpy()


def chosen(logits, temperature=1.0, top_p=1.0, n=4000, seed=0):
    rows = np.tile(np.asarray(logits, dtype=float), (n, 1))
    noise = np.random.default_rng(seed).gumbel(size=rows.shape)
    return choose(rows, np.full(n, temperature), np.full(n, top_p), noise)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_probabilities(temperature):
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    p = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    tokens = chosen(logits, temperature, n=20_000)
    assert np.bincount(tokens, minlength=4) / 20_000 == pytest.approx(p, abs=0.012)


def test_top_p_keeps_the_smallest_set_of_that_mass():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert set(chosen(logits, top_p=0.7)) == {0, 1}
    assert set(chosen(logits, top_p=0.85)) == {0, 1, 2}
    assert set(chosen(logits, top_p=0.0)) == {0}
    assert set(chosen(logits, top_p=1.0)) == {0, 1, 2, 3}


def test_temperature_zero_takes_the_likeliest_token():
    noise = CPUNoise([1, 2], [0.0, 0.0], 3, "cpu").draw([0, 1])
    assert (noise == 0).all()
    tokens = choose(np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.zeros(2), np.ones(2), noise)
    assert tokens.tolist() == [1, 0]


@pytest.mark.parametrize("kind", [CPUNoise, DeviceNoise])
def test_noise_of_a_row_is_independent_of_the_batch(kind):
    both, alone = kind([5, 6], [1.0, 1.0], 4, "cpu"), kind([6], [1.0], 4, "cpu")
    both.draw([0])
    for _ in range(2):
        assert torch.equal(both.draw([0, 1])[1], alone.draw([0])[0])
    assert not torch.equal(alone.draw([0]), alone.draw([0]))


def test_the_cpu_draws_the_tokens_of_existing_homes():
    """The hash is of the tokens that NumPy alone drew."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(64, 500)) * 3
    temperature = rng.choice([0, 0.7, 1.0, 1.3], size=64)
    top_p = rng.choice([0.5, 0.8, 0.95, 1.0], size=64)
    noise = open_noise(range(64), temperature.tolist(), 500)
    drawn = [choose(logits, temperature, top_p, noise.draw(range(64))) for _ in range(20)]
    assert content_hash(np.array(drawn).tolist()) == (
        "f846b2970ddb9b45aa9bc604fb05f4ef5a902492d42645143bc37bebd38d39c3"
    )
