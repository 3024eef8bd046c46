"""No GPU is needed: what torch sees of one is set by the tests."""

import pytest
import torch

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.policy.devices import Placement, choose_placement


@pytest.fixture
def gpus(monkeypatch):
    """A function that makes torch see `n` GPUs, with or without bfloat16."""

    def see(n, has_bfloat16=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
        monkeypatch.setattr(
            "rlhf_pipeline.generate.policy.devices.has_bfloat16", lambda device: has_bfloat16
        )

    return see


def test_auto_takes_the_first_gpu_in_bfloat16(gpus):
    gpus(2)
    assert choose_placement() == Placement("cuda:0", "bfloat16")
    assert choose_placement("cuda:1", "float32") == Placement("cuda:1", "float32")
    assert choose_placement("cpu").device == "cpu"


def test_cpu_uses_float32_with_a_notice_by_default(gpus):
    gpus(0)
    for dtype in ("auto", "bfloat16"):
        place = choose_placement("auto", dtype)
        assert (place.device, place.dtype) == ("cpu", "float32")
        assert "CPU" in str(place.notice)
    assert choose_placement("cpu", "float32") == Placement("cpu", "float32")


def test_a_gpu_that_torch_does_not_see_is_refused(gpus):
    gpus(0)
    with pytest.raises(ConfigurationError, match=r"device is cuda, but torch sees no GPU here\."):
        choose_placement("cuda")
    gpus(2)
    with pytest.raises(ConfigurationError, match="cuda:2, but torch sees 2 GPUs"):
        choose_placement("cuda:2")
