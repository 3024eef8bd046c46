"""Turns failed allocations, as under `ulimit -v` or in a small container, into OutOfMemory."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_pipeline.errors import OutOfMemory

TORCH = "can't allocate memory"  # in the RuntimeError of torch's allocator


@contextmanager
def translate_memory_errors(what: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemory, which names `what` needed it."""
    try:
        yield
    except (MemoryError, RuntimeError) as cause:
        if isinstance(cause, RuntimeError) and TORCH not in str(cause):
            raise
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
        raise OutOfMemory(
            f"{what} needs more memory than this process may have ({reason}). Raise the limit "
            "(ulimit -v, the container's), take fewer days in one run, or let fewer runs work at "
            "once (RLHF_MAX_CONCURRENT_RUNS). The last good files are untouched."
        ) from cause
