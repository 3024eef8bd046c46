"""The identity of learnt tensors. Knows names and bytes; knows no network."""

import hashlib
from collections.abc import Mapping
from typing import Any


def hash_tensors(tensors: Mapping[str, Any], *facts: float) -> str:
    """SHA-256 over names, types, shapes and bytes of torch `tensors`, in the order of their names,
    and over `facts`.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        part = tensors[name].detach().to("cpu").contiguous()
        digest.update(f"{name} {part.dtype} {tuple(part.shape)}\0".encode())
        digest.update(part.reshape(-1).view(dtype=_byte_dtype()).numpy().data)
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def _byte_dtype() -> Any:
    import torch

    return torch.uint8
