"""Connects to checked addresses, and ends connections at a time limit."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rlhf_pipeline.alerts.addresses import IPAddress
from rlhf_pipeline.errors import DeliveryFailed


class Deadline:
    """A moment on the monotonic clock, `seconds` from now."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left. Raises DeliveryFailed if there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    def error(self) -> DeliveryFailed:
        return DeliveryFailed(f"The receiver took longer than {self._seconds:.3g} s.")


def connect(
    host: str, port: int, addresses: Sequence[IPAddress], deadline: Deadline
) -> socket.socket:
    """Connect to the first address that accepts; the name is not looked up again, so a changed DNS
    record cannot lead elsewhere. Raises DeliveryFailed.
    """
    failures: list[str] = []
    for address in addresses:
        # Leaves time for the other addresses, since a dead one may not even refuse.
        patience = deadline.remaining() / (len(addresses) - len(failures))
        try:
            connected = socket.create_connection((str(address), port), timeout=patience)
        except OSError as cause:
            failures.append(f"{address}: {cause.strerror or cause}")
        else:
            connected.settimeout(None)  # `close_at` ends it
            return connected
    raise DeliveryFailed(f"Cannot connect to {host}, port {port} ({'; '.join(failures)}).")


@contextmanager
def close_at(deadline: Deadline, connected: socket.socket) -> Iterator[None]:
    """Shut the connection down at the deadline, and then raise DeliveryFailed. A socket's own
    timeout starts anew with every byte, so a slow receiver could hold a connection for hours.
    """
    is_late = threading.Event()
    # A second handle on the same connection, which works while TLS is negotiated on the first.
    handle = connected.dup()

    def shut_down() -> None:
        is_late.set()
        with suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(deadline.remaining(), shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as cause:
        if not is_late.is_set():
            raise
        raise deadline.error() from cause
    else:
        if is_late.is_set():  # the end of a reply that was cut off reads like its regular end
            raise deadline.error()
    finally:
        timer.cancel()
        timer.join()
        handle.close()
