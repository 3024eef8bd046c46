"""A real `rlhf serve` for tests: its own process, its own home, on loopback; it ends with the
test.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import Role, utc_now
from rlhf_pipeline.store import Store
from tests.serving import RLHF, find_free_port, server_environment, wait_for_server

PROJECT = "bench"


def made_comparisons(n: int, *, prefix: str = "c", **more: object) -> pd.DataFrame:
    rows = {
        "day": utc_now().date().isoformat(),
        "comparison_id": [f"{prefix}{i:04d}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": [f"prompt {i}" for i in range(n)],
        "completion_a_id": [f"x{i}" for i in range(n)],
        "completion_b_id": [f"y{i}" for i in range(n)],
        "completion_a": [f"text x {i}" for i in range(n)],
        "completion_b": [f"text y {i}" for i in range(n)],
        "model_version_a": "demo.policy@1",
        "model_version_b": "demo.policy@2",
        "category": "factual",
        "repeat_of": None,
        "position": range(n),
        "seed": 7,
        **more,
    }
    return check_frame(pd.DataFrame(rows), COMPARISONS)


@dataclass
class Served:
    """One server and its store. `kill` and `start` as often as a test likes."""

    url: str
    home: Path
    port: int = field(default_factory=find_free_port)
    process: "subprocess.Popen[bytes] | None" = None
    # beside what every server here is started with
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def opened(self) -> Store:
        return Store.open(self.url)

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [RLHF, "serve", "--port", str(self.port)],
                cwd=self.home,
                env=server_environment(self.url, self.home) | self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for_server(self.process, self.port, self.log)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            self.process.wait(120)
            self.process = None

    def token(self, email: str, *roles: Role, kind: str = "person") -> str:
        """Of a new user with these roles."""
        with self.opened() as store:
            user = store.users.add(email=email, name=email, roles=roles, kind=kind, actor="test")
            return store.tokens.issue(
                user.user_id, kind="api", lifetime=timedelta(days=1), actor="test"
            )[0]

    def furnish(self, n: int, *, overlap: int = 1) -> None:
        """`n` comparisons, offered to people."""
        with self.opened() as store:
            store.migrate()
            frame = made_comparisons(n)
            store.comparisons.publish(frame, published_at=utc_now())
            store.cards.offer(frame["comparison_id"].tolist(), overlap=overlap)


@contextmanager
def served(url: str, home: Path) -> Iterator[Served]:
    """Not started yet."""
    server = Served(url, home)
    try:
        yield server
    finally:
        server.kill(signal.SIGTERM if sys.exc_info()[0] is None else signal.SIGKILL)
