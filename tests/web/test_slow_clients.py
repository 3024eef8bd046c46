"""Clients that send their requests a byte at a time are hung up on; those that listen for long are
not.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rlhf_pipeline.web.server import WebServer

TIMEOUT_S = 0.1
TICKS = 5  # of the stream of events, a timeout apart
DEADLINE_S = 30.0  # of a busy machine


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body of a POST; answers a GET of /events with a stream that outlasts both
    timeouts.
    """
    if scope["type"] != "http":
        return
    if scope["path"] == "/events":
        await StreamingResponse(_ticks())(scope, receive, send)
        return
    body = await Request(scope, receive).body() if scope["method"] == "POST" else b""
    await Response(f"{len(body)} bytes")(scope, receive, send)


async def _ticks() -> AsyncIterator[str]:
    for n in range(TICKS):
        yield f"data: {n}\n\n"
        await asyncio.sleep(TIMEOUT_S)


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with (
        WebServer(app, head_timeout_s=TIMEOUT_S, body_timeout_s=TIMEOUT_S) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connected,
    ):
        yield connected


def trickle(connection: socket.socket, first: bytes) -> bytes:
    """Send `first` and then one byte whenever nothing came for a moment; what the server answered
    until it hung up.
    """
    connection.sendall(first)
    connection.settimeout(TIMEOUT_S / 10)
    answer, deadline = b"", time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            received = connection.recv(1000)
        except TimeoutError:
            received = None
        except ConnectionError:
            return answer
        if received == b"":
            return answer
        answer += received or b""
        try:
            connection.sendall(b"x")
        except ConnectionError:
            return answer
    pytest.fail("the server never hung up")


def test_slow_headers_end_the_connection(connection: socket.socket):
    assert trickle(connection, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").startswith(
        b"HTTP/1.1 408 "
    )


def test_slow_body_ends_the_connection(connection: socket.socket):
    assert trickle(
        connection, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    ).startswith(b"HTTP/1.1 408 ")


def test_slow_body_nobody_reads_ends_the_connection(connection: socket.socket):
    answer = trickle(
        connection, b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_silent_connection_is_ended(connection: socket.socket):
    connection.settimeout(DEADLINE_S)
    assert b"".join(iter(lambda: connection.recv(1000), b"")).startswith(b"HTTP/1.1 408 ")


def test_second_request_of_a_connection_may_not_be_slow_either(connection: socket.socket):
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.settimeout(DEADLINE_S)
    assert connection.recv(1000).endswith(b"0 bytes")
    trickle(connection, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")


def test_long_answer_is_not_cut_off(connection: socket.socket):
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    connection.settimeout(DEADLINE_S)
    answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.count(b"data: ") == TICKS


@pytest.mark.parametrize(
    "second",
    [b"GET / HTTP/1.1\r\nX-Slow: ", b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"],
    ids=["head", "body"],
)
def test_slow_second_request_does_not_cut_the_first_answer(
    connection: socket.socket, second: bytes
):
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n" + second)
    connection.settimeout(DEADLINE_S)
    answer = b""
    while b"\r\n0\r\n\r\n" not in answer:
        received = connection.recv(1000)
        assert received, answer
        answer += received
    assert answer.count(b"data: ") == TICKS
    trickle(connection, b"x")
