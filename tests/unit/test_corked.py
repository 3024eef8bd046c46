"""Head and body of an answer leave in one call; nothing is lost at the end of a connection."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf_pipeline.web.server import BufferedTransport


class Transport:
    def __init__(self):
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data):
        self.sent.append(data)

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed

    def get_extra_info(self, name):
        return f"its {name}"


@pytest.fixture
def transport():
    return Transport()


def run(steps):
    # its thread has no event loop yet; a browser's tests leave one in the main thread
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(steps())).result()


def test_writes_of_one_step_are_sent_together_in_order(transport):
    async def steps():
        corked = BufferedTransport(transport, asyncio.get_running_loop())
        corked.write(b"head ")
        corked.write(b"body")
        assert transport.sent == []
        await asyncio.sleep(0)
        assert transport.sent == [b"head body"]
        corked.write(b"event")
        await asyncio.sleep(0)
        assert transport.sent == [b"head body", b"event"]

    run(steps)


def test_buffered_data_is_sent_before_the_connection_closes(transport):
    async def steps():
        corked = BufferedTransport(transport, asyncio.get_running_loop())
        corked.write(b"last words")
        corked.close()
        assert (transport.sent, transport.is_closed) == ([b"last words"], True)
        await asyncio.sleep(0)
        assert transport.sent == [b"last words"]

    run(steps)


def test_nothing_is_sent_after_a_disconnect(transport):
    async def steps():
        corked = BufferedTransport(transport, asyncio.get_running_loop())
        corked.write(b"answer")
        transport.is_closed = True
        await asyncio.sleep(0)
        assert transport.sent == []

    run(steps)


def test_everything_else_is_the_transports_own(transport):
    async def steps():
        assert (
            BufferedTransport(transport, asyncio.get_running_loop()).get_extra_info("socket")
            == "its socket"
        )

    run(steps)
