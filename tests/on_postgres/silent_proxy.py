"""A TCP proxy that can fall silent: it accepts and acknowledges everything and forwards nothing."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class SilentProxy:
    """Forwards to `port` on loopback; `hush` and `speak` switch."""

    def __init__(self, port: int):
        self._target = port
        self._speaks = threading.Event()
        self._speaks.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def hush(self) -> None:
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.speak()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._forward, args=(source, target), daemon=True
                    ).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while sent := source.recv(65536):
                self._speaks.wait()
                target.sendall(sent)
            target.shutdown(socket.SHUT_WR)
