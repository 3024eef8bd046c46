"""Connections to a Postgres server."""

from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL

from rlhf_pipeline.core.config import CONNECTION_OPTIONS

# a query of a million votes takes some 20 s; nothing of a web app or a run takes this long
STATEMENT_S = 300
# limit of an open write transaction whose process hangs and holds the write lock
IDLE_S = 60


def network_options(url: URL) -> dict[str, Any]:
    """Options of libpq that make the kernel detect a dead network in about ten seconds. Options in
    the URL (`?connect_timeout=20`) take precedence.
    """
    return {name: value for name, value in CONNECTION_OPTIONS.items() if name not in url.query}


def postgres_engine(url: URL, *, busy_timeout_s: float) -> Engine:
    # Set explicitly, whatever the server's default: a vote that was answered with 201 survives a
    # crash of the server.
    settings = {
        "lock_timeout": int(busy_timeout_s * 1000),
        "statement_timeout": STATEMENT_S * 1000,
        "timezone": "UTC",
        "synchronous_commit": "on",
    }
    # Pre-ping replaces connections opened before a server restart. values_plus_batch sends many
    # rows at once, not one after the other while everybody waits for the lock.
    return create_engine(
        url,
        pool_pre_ping=True,
        executemany_mode="values_plus_batch",
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_timeout_s,
        connect_args={
            **network_options(url),
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        },
    )
