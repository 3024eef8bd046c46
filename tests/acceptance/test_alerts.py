"""A webhook that refuses for a while gets each alert once, signed."""

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.acceptance.home import Home, kill

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
N_REFUSED = 3
SETTINGS = """
alert_targets:
  team: {{channel: webhook, url: "{url}", secret: "{secret}", allow_private: true}}
loop:
  prompts: {{n: 2}}
  alerts:
    levels: [[team]]
    retry_seconds: [1, 1, 1, 1, 1, 1, 1, 1]
    rules:
      queue_age: {{threshold: 0.0001}}
"""


class Receiver:
    """Answers 503 to its first requests and 204 to the others; keeps what it got."""

    def __init__(self) -> None:
        self.refused: list[tuple[dict[str, str], bytes]] = []
        self.accepted: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                refuses = len(receiver.refused) < N_REFUSED
                attempts = receiver.refused if refuses else receiver.accepted
                attempts.append(({name.lower(): v for name, v in self.headers.items()}, body))
                self.send_response(503 if refuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    hook = Receiver()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


def test_refusing_receiver_gets_each_signed_alert_once(home: Home, receiver: Receiver) -> None:
    config = home.path.parent / "rlhf.yaml"
    config.write_text(SETTINGS.format(url=receiver.url, secret=SECRET))
    home.environ |= {
        "RLHF_CONFIG": str(config),
        "RLHF_COMPLETION_BACKEND": "template",
        "RLHF_SENSOR_SECONDS": "1",
    }
    home.offer(3)
    log = home.path.parent / "loop.log"
    with log.open("wb") as file:
        loop = home.popen("loop", stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 120
        while not receiver.accepted:
            assert loop.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        time.sleep(5)  # some ticks more: none sends it again
    finally:
        kill(loop)
    assert len(receiver.refused) == N_REFUSED
    refused = []
    for headers, body in receiver.refused + receiver.accepted:
        assert Webhook(SECRET).verify(body, headers) == json.loads(body)
        refused.append((headers["webhook-id"], json.loads(body)))
    n_of_message = Counter(headers["webhook-id"] for headers, _ in receiver.accepted)
    assert set(n_of_message.values()) == {1}, "no message is sent again once it is taken"
    assert {message_id for message_id, _ in refused} == set(n_of_message), "none is lost"
    opened = [
        body["data"]["alert_id"]
        for body in dict(refused).values()
        if body["type"] == "alert.opened"
    ]
    assert len(opened) == len(set(opened))
    assert "queue_age" in {body["data"]["rule"] for _, body in refused}
