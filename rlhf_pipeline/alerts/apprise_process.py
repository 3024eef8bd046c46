"""Sends one message with apprise; its order comes as JSON on standard input.

A process of its own, because apprise loads plug-ins for more than a hundred services.
"""

import json
import logging
import signal
import sys
from math import ceil
from typing import IO

TYPES = {"info": "info", "warning": "warning", "critical": "failure"}


def send(order: IO[str]) -> int:
    """The exit code: 0 if the service took the message."""
    wanted = json.load(order)
    signal.alarm(ceil(wanted["seconds"]))  # ends this process even if its parent was killed
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    import apprise

    service = apprise.Apprise()
    if not service.add(wanted["url"]):
        sys.stderr.write("apprise does not know the URL; https://appriseit.com lists all.\n")
        return 1
    kind = "success" if wanted["kind"] == "resolved" else TYPES[wanted["severity"]]
    is_sent = service.notify(title=wanted["title"], body=wanted["body"], notify_type=kind)
    return 0 if is_sent else 1


if __name__ == "__main__":
    sys.exit(send(sys.stdin))
