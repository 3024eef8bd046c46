"""Values that are read again when they are old."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rlhf_pipeline.web.memory_cache import CachedValue


def test_waiting_readers_share_a_slow_read() -> None:
    reads: list[float] = []
    together = threading.Barrier(6)

    def read() -> int:
        reads.append(time.monotonic())
        time.sleep(0.2)
        return len(reads)

    value = CachedValue(read, seconds=0.05)

    def ask(_: int) -> int:
        together.wait(120)
        return value()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))
    assert len(reads) <= 2  # the second for those that asked late
