"""Posts bytes to a web address that was checked before; follows no redirect.

`http.client` and not httpx, because it accepts a connected socket: the address that was checked is
the one that is connected to.
"""

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rlhf_pipeline.alerts.addresses import is_public, refuse_private, resolve
from rlhf_pipeline.alerts.connections import Deadline, close_at, connect
from rlhf_pipeline.errors import DeliveryFailed

MOST_BYTES = 2_000  # read of a reply's body, for error messages


@dataclass(frozen=True)
class HttpReply:
    """What the receiver answered. Header names are in lower case; `text` is the beginning of the
    body, if it did not accept.
    """

    status: int
    headers: Mapping[str, str]
    text: str


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool, seconds: float
) -> HttpReply:
    """Post within `seconds`. Raises DeliveryFailed, which names the host but not the rest of the
    URL, for refused addresses and failed connections.
    """
    deadline = Deadline(seconds)
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = resolve(host, port, deadline.remaining())
    refuse_private(host, addresses, allow_private=allow_private)
    if parts.scheme != "https" and any(is_public(address) for address in addresses):
        raise DeliveryFailed(f"{host} is public, and http is not encrypted. Use https.")
    connected = connect(host, port, addresses, deadline)
    try:
        with close_at(deadline, connected):
            if parts.scheme == "https":
                context = ssl.create_default_context()
                connected = context.wrap_socket(connected, server_hostname=host)
            path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            return _exchange(connected, path, body, {"Host": parts.netloc, **headers})
    except (OSError, http.client.HTTPException) as cause:
        reason = getattr(cause, "strerror", None) or cause or "the connection ended"
        raise DeliveryFailed(f"{host} gave no valid reply: {reason}.") from cause
    finally:
        connected.close()


def _exchange(
    connected: socket.socket, path: str, body: bytes, headers: Mapping[str, str]
) -> HttpReply:
    connection = http.client.HTTPConnection("", 0)  # its own host is not used: `Host` is given
    connection.sock = connected
    connection.request("POST", path, body, {**headers, "Connection": "close"})
    received = connection.getresponse()
    # The body of a reply that accepts is not read: nobody needs it.
    error_text = b"" if 200 <= received.status < 300 else received.read(MOST_BYTES)
    names = {name.lower(): value for name, value in received.getheaders()}
    return HttpReply(received.status, names, error_text.decode("utf-8", "replace"))
