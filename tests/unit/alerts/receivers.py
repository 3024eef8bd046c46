"""Receivers of alerts on loopback: a web server and a mail server, both with a bad day if asked."""

import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hook:
    """Answers with `status`, and keeps what it received."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    text: bytes = b""
    delay_s: float = 0.0
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=abcdefgh"


@contextmanager
def serve_hook(hook: Hook, tls: ssl.SSLContext | None = None) -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.received.append((dict(self.headers), body))
            time.sleep(hook.delay_s)
            with suppress(ConnectionError):  # the sender may have given up
                self.send_response(hook.status)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(hook.text)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        hook.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield hook
        server.shutdown()


@contextmanager
def serve_bytes(handle: Callable[[Any], None]) -> Iterator[int]:
    """A server that hands each connection to `handle`; yields its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handle(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@dataclass
class Mailbox:
    """Takes mail without encryption; refuses it with `refusal` if there is one."""

    refusal: str = ""
    mails: list[bytes] = field(default_factory=list)

    def handle(self, connected: Any) -> None:
        stream = connected.makefile("rwb")

        def say(line: str) -> None:
            stream.write(line.encode() + b"\r\n")
            stream.flush()

        say("220 stub")
        while command := stream.readline().decode().strip().upper():
            if command == "DATA" and not self.refusal:
                say("354 go on")
                self.mails.append(b"".join(iter(stream.readline, b".\r\n")))
                say("250 taken")
            elif command.startswith("AUTH"):
                say("235 welcome")
            elif command == "QUIT":
                say("221 bye")
                return
            elif command.startswith("EHLO"):
                say("250-stub")
                say("250 AUTH PLAIN LOGIN")
            else:
                say(self.refusal if self.refusal and command.startswith("RCPT") else "250 ok")
