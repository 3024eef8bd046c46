"""Chooses the device and the number format in which a policy generates, scores and trains."""

from dataclasses import dataclass
from typing import Any, Literal

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import Dtype


@dataclass(frozen=True)
class Placement:
    """A device that exists and the number format that it computes in; `notice` says where that is
    less than was asked for or could be.
    """

    device: str
    dtype: Literal["float32", "bfloat16"]
    notice: str | None = None

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def torch_dtype(self) -> Any:
        import torch

        return getattr(torch, self.dtype)


CPU = Placement("cpu", "float32")


def choose_placement(device: str = "auto", dtype: Dtype = "auto") -> Placement:
    """Place a policy: `auto` takes the first GPU where there is one, and bfloat16 where the GPU
    computes in it.

    On the CPU it is always float32: bfloat16 is emulated there and slower, and equal inputs would
    not give equal weights. Raises ConfigurationError for a GPU that torch does not see.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda:0" if n_gpus else "cpu"
    elif device.startswith("cuda"):
        number = int(device.partition(":")[2] or 0)
        if number >= n_gpus:
            gpus = f"{n_gpus} GPU{'s' if n_gpus > 1 else ''}" if n_gpus else "no GPU"
            raise ConfigurationError(
                f"device is {device}, but torch sees {gpus} here. Set device to cpu or auto, or "
                "install a build of torch for this GPU."
            )
        device = f"cuda:{number}"
    if dtype == "float32":
        return Placement(device, "float32")
    if device == "cpu":
        return Placement(device, "float32", "In float32 on the CPU, which emulates bfloat16.")
    if not has_bfloat16(device):
        return Placement(device, "float32", f"In float32: {device} does not compute in bfloat16.")
    return Placement(device, "bfloat16")


def has_bfloat16(device: str) -> bool:
    """Whether the hardware multiplies in bfloat16; emulation is slower than float32."""
    import torch

    if device.startswith("cuda"):
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
