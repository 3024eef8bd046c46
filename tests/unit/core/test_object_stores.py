"""Files in a store are whole or not there, and what a store refuses is named with its cure."""

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import ArtefactError
from rlhf_pipeline.core.object_stores import get, get_many, list_names, open_path, put
from tests.s3 import ENVIRONMENT, S3, forget_connections, local_s3, point_at

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with local_s3() as server:
        yield server


def refused(path: str) -> str:
    """What reading, writing and listing below `path` all say, checked to be the same complaint with
    no secret in it.
    """
    messages = set()
    for act in (
        lambda: put(open_path(path) / "new", b"x"),
        lambda: get(open_path(path) / "new"),
        lambda: list_names(open_path(path)),
    ):
        with pytest.raises(ArtefactError) as caught:
            act()
        message = str(caught.value)
        assert path in message
        assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in message
        messages.add(
            message.split(". ", 1)[1]
            .removesuffix(".")
            .removesuffix("; the previous file is untouched")
        )
    assert len(messages) == 1, messages
    return messages.pop()


def test_wrong_credentials_are_reported(s3: S3) -> None:
    from moto.core import set_initial_no_auth_action_count

    put(open_path(s3.url("kept")) / "file", b"before")
    # now the server knows nobody
    message = set_initial_no_auth_action_count(0)(refused)(s3.url("kept"))
    assert "takes the credentials (AWS_ACCESS_KEY_ID" in message
    assert get(open_path(s3.url("kept")) / "file") == b"before"


def test_an_unreachable_server_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    point_at(nobody, monkeypatch)
    with pytest.raises(
        ArtefactError,
        match=rf"Cannot read .*{nobody}.*Check that the store answers at its address .AWS_ENDPOINT",
    ):
        get(open_path(s3.url("kept")) / "file")
    point_at("nonsense", monkeypatch)
    assert "AWS_ENDPOINT_URL" in refused(s3.url("kept"))
    monkeypatch.undo()
    forget_connections()


def test_many_files_are_read_in_order_and_missing_ones_are_none(s3: S3) -> None:
    folder = open_path(s3.url("many"))
    for n in range(0, 40, 2):
        put(folder / f"{n}", b"%d" % n)
    assert get_many([folder / f"{n}" for n in range(40)]) == [
        b"%d" % n if n % 2 == 0 else None for n in range(40)
    ]
    assert list_names(folder) == sorted(str(n) for n in range(0, 40, 2))


class Stalling(socketserver.BaseRequestHandler):
    """Forwards to a server until `limit` bytes have gone up, then waits for the client to die."""

    target: tuple[str, int]
    limit = 2**20
    stalled = threading.Event()

    def handle(self) -> None:
        with socket.create_connection(self.target) as up:
            threading.Thread(target=self._answers, args=(up,), daemon=True).start()
            n_bytes = 0
            while part := self.request.recv(65536):
                if n_bytes < self.limit:
                    up.sendall(part)
                else:
                    self.stalled.set()
                n_bytes += len(part)

    def _answers(self, up: socket.socket) -> None:
        try:
            while part := up.recv(65536):
                self.request.sendall(part)
            self.request.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client is gone


def test_a_writer_killed_during_a_put_leaves_the_old_object(s3: S3) -> None:
    file = open_path(s3.url("killed")) / "file"
    put(file, b"before")
    host, port = s3.endpoint.removeprefix("http://").split(":")
    handler = type(
        "Handler", (Stalling,), {"target": (host, int(port)), "stalled": threading.Event()}
    )
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        script = (
            "from rlhf_pipeline.core.object_stores import open_path, put; "
            f"put(open_path({str(file)!r}), b'x' * 64 * 2**20)"
        )
        environ = os.environ | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}
        writer = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=environ)
        try:
            assert handler.stalled.wait(60), "the put never got under way"
            assert get(file) == b"before"
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            proxy.shutdown()
    assert get(file) == b"before"
