"""Connections to a Postgres server that fail within seconds when the server stops answering."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import extensions
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL

from rlhf_pipeline.config import CONNECTION_OPTIONS

# seconds without an answer after which the watchdog opens a new connection
SILENT_S = 5.0
# after a failed attempt, so that a queue of threads does not wait for one attempt each
REFUSE_S = 1.0
# a query of a million votes takes some 20 s; nothing of a web app or a run takes this long
STATEMENT_S = 300
# limit of an open write transaction whose process hangs and holds the write lock
IDLE_S = 60


def network_options(url: URL) -> dict[str, Any]:
    """Options of libpq that make the kernel detect a dead network in about ten seconds. Options in
    the URL (`?connect_timeout=20`) take precedence.
    """
    return {name: value for name, value in CONNECTION_OPTIONS.items() if name not in url.query}


def postgres_engine(
    url: URL, *, busy_timeout_s: float, silent_s: float = SILENT_S
) -> tuple[Engine, "Watchdog"]:
    """An engine whose connections the watchdog ends when the server is silent for `silent_s`."""
    # Set explicitly, whatever the server's default: a vote that was answered with 201 survives a
    # crash of the server.
    settings = {
        "lock_timeout": int(busy_timeout_s * 1000),
        "statement_timeout": STATEMENT_S * 1000,
        "timezone": "UTC",
        "synchronous_commit": "on",
    }
    network = network_options(url)
    watchdog = Watchdog(lambda: _is_answering(engine, network), silent_s)
    # Pre-ping replaces connections opened before a server restart. values_plus_batch sends many
    # rows of an update at once, not one after the other while everybody waits for the lock.
    engine = create_engine(
        url,
        pool_pre_ping=True,
        executemany_mode="values_plus_batch",
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_timeout_s,
        connect_args={
            **network,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            "connection_factory": partial(_WatchedConnection, watchdog=watchdog),
        },
    )
    return engine, watchdog


def _is_answering(engine: Engine, network: dict[str, Any]) -> bool:
    """Whether the server answers a new connection, even with a refusal."""
    _, parameters = engine.dialect.create_connect_args(engine.url)
    try:
        with closing(psycopg2.connect(**{**network, **parameters})):
            return True
    except psycopg2.OperationalError as refusal:
        return is_refusal(str(refusal))


def is_refusal(message: str) -> bool:
    r"""Whether the server itself refused a failed connection, in any language of its messages.

    libpq puts two blanks behind the server's severity alone; psycopg2 has no SQLSTATE for a
    connection that did not come about.

    >>> is_refusal('connection to server at "db" failed: ВАЖНО:  превышен предел')
    True
    >>> is_refusal("connection failed: timeout expired")
    False
    """
    return re.search(r"\S:  \S", message) is not None


class Watchdog:
    """Ends connections whose server stopped answering.

    Keepalives do not notice a stopped server or a silent proxy: the kernel at the other end still
    acknowledges. A slow statement is silent too, so after `silent_s` the watchdog asks with
    `answers`, a new connection, and ends the old ones only if that fails.
    """

    def __init__(self, answers: Callable[[], bool], silent_s: float):
        self.silent_s = silent_s
        self._answers = answers
        self._starting = threading.Lock()
        self._process = os.getpid()
        self._lock = threading.Lock()
        # id of a connection -> start of its wait, the connection
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._ended: set[int] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._refuses_until = 0.0

    @contextmanager
    def watch(self, connection: Any) -> Iterator[None]:
        """The block waits for the server. Raises OperationalError if the watchdog ended the
        connection meanwhile.
        """
        key = id(connection)
        with self._lock:
            self._waiting[key] = time.monotonic(), connection
        try:
            yield
        except psycopg2.Error as cause:
            if key in self._ended:
                raise psycopg2.OperationalError(self._silence_message) from cause
            raise
        finally:
            with self._lock:
                self._waiting.pop(key, None)
                self._ended.discard(key)

    @contextmanager
    def watch_connect(self) -> Iterator[None]:
        """The block connects. Raises OperationalError at once if the server was silent a moment
        ago.
        """
        if time.monotonic() < self._refuses_until:
            raise psycopg2.OperationalError(self._silence_message)
        try:
            yield
        except psycopg2.OperationalError as cause:
            if "timeout expired" in str(cause):
                self._refuses_until = time.monotonic() + REFUSE_S
            raise
        self._start()

    def close(self) -> None:
        self._closed.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive() and not self._closed.is_set():
                return
            # a forked child inherits neither the thread nor connections that it may use
            if self._process != os.getpid():
                self._process = os.getpid()
                self._lock = threading.Lock()
                self._waiting = {}
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self._watch, args=(self._closed,), name="postgres-watchdog", daemon=True
            )
            self._thread.start()

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(self.silent_s / 4):
            if not self._find_overdue():
                continue
            if self._answers():
                self._wait_again()
            else:
                self._end_overdue()

    def _find_overdue(self) -> list[tuple[int, Any]]:
        latest = time.monotonic() - self.silent_s
        with self._lock:
            return [
                (key, connection)
                for key, (since, connection) in self._waiting.items()
                if since <= latest
            ]

    def _wait_again(self) -> None:
        overdue = self._find_overdue()
        with self._lock:
            for key, connection in overdue:
                if key in self._waiting:
                    self._waiting[key] = time.monotonic(), connection

    def _end_overdue(self) -> None:
        self._refuses_until = time.monotonic() + REFUSE_S
        overdue = self._find_overdue()
        with self._lock:
            for key, connection in overdue:
                if key in self._waiting:
                    self._ended.add(key)
                    # the server, or its owner, closed it meanwhile
                    with suppress(psycopg2.Error, OSError):
                        _shut_down_socket(connection.fileno())

    @property
    def _silence_message(self) -> str:
        return f"no answer from the server within {self.silent_s:g} s"


def _shut_down_socket(descriptor: int) -> None:
    """Wake the thread that waits for this socket; the owner closes it."""
    with socket.socket(fileno=os.dup(descriptor)) as twin:
        twin.shutdown(socket.SHUT_RDWR)


class _WatchedConnection(extensions.connection):  # type: ignore[misc]
    def __init__(self, dsn: str, *, watchdog: Watchdog):
        self.watchdog = watchdog
        with watchdog.watch_connect():
            super().__init__(dsn)
        self.cursor_factory = _WatchedCursor

    def commit(self) -> None:
        with self.watchdog.watch(self):
            super().commit()

    def rollback(self) -> None:
        with self.watchdog.watch(self):
            super().rollback()


class _WatchedCursor(extensions.cursor):  # type: ignore[misc]
    connection: _WatchedConnection

    def execute(self, *statement: Any) -> None:
        with self.connection.watchdog.watch(self.connection):
            super().execute(*statement)

    def copy_expert(self, *statement: Any) -> None:
        with self.connection.watchdog.watch(self.connection):
            super().copy_expert(*statement)
