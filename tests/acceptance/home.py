"""A project as its users meet it: a home, the command `rlhf`, a server, people with tokens.

Nothing here, nor in any test of this folder, imports the library.
"""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.serving import find_free_port

RLHF = str(Path(sys.executable).with_name("rlhf"))
ROLES = ("annotator", "curator", "engineer", "approver", "auditor", "admin")
SECONDS_TO_START = 180  # a busy machine needs ten times what a quiet one does
UNASKED = ("--yes", "--no-replay")
COLUMNS = ("source_pair_id", "prompt", "completion_a", "completion_b")


@dataclass
class Home:
    """A folder that `rlhf init` made, and the environment of commands on it."""

    path: Path
    environ: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        foreign = ("RLHF_", "DAGSTER_", "MLFLOW_")
        inherited = {name: v for name, v in os.environ.items() if not name.startswith(foreign)}
        # wide enough for tables that break no path
        ours = {"RLHF_HOME": str(self.path), "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
        return inherited | ours | self.environ

    def popen(self, *arguments: object, **more: Any) -> "subprocess.Popen[str]":
        """Start a command in the folder of the home, as the leader of a process group."""
        return subprocess.Popen(
            [RLHF, *map(str, arguments)],
            env=self.environment(),
            cwd=self.path.parent,
            text=True,
            start_new_session=True,
            **more,
        )

    def run(self, *arguments: object, code: int = 0, timeout_s: float = 300) -> str:
        """What a command prints; fails unless it ends with this exit code."""
        process = self.popen(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        finally:
            kill(process)
        assert "Traceback" not in printed, printed
        assert process.returncode == code, f"rlhf {arguments}: {process.returncode}\n{printed}"
        return printed

    def token(self, email: str) -> str:
        """A new API token of a user."""
        printed = self.run("users", "token", email).split()
        (token,) = [word for word in printed if word.startswith("rlhf_")]
        return token

    def n_rows(self, what: str) -> int:
        """How many comparisons or votes the home has, as `rlhf export` counts them."""
        return len(self.export(what))

    def export(self, what: str) -> list[dict[str, str]]:
        """The rows of an export, as they stand in its CSV file."""
        path = self.path.parent / f"{self.path.name}-{what}.csv"
        self.run("export", what, "--out", path)
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def take(self, *files_and_options: object, **more: Any) -> str:
        """Import preferences without asking; what the command prints."""
        return self.run("import", "preferences", *files_and_options, *UNASKED, **more)

    def offer(self, n: int, *, prefix: str = "c") -> None:
        """Import `n` comparisons and offer them to people."""
        path = write_csv(self.path.parent / f"{prefix}.csv", COLUMNS, pairs(n, prefix=prefix))
        self.take(path, "--offer")


def pairs(n: int, *, prefix: str = "c") -> list[tuple[str, ...]]:
    """Rows of COLUMNS, no two alike."""
    return [
        (f"{prefix}{i}", f"prompt {prefix}{i}", f"text A of {prefix}{i}", f"text B of {prefix}{i}")
        for i in range(n)
    ]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def kill(process: "subprocess.Popen[str]", how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the whole group of a process and wait for its end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    process.wait(60)


@dataclass
class Person:
    """Somebody with roles, and a session of theirs."""

    user_id: str
    email: str
    api: httpx.Client


@dataclass
class Server:
    """`rlhf serve` on a home. Tests kill and start it as often as they like: its port stays."""

    home: Home
    port: int = 0
    process: "subprocess.Popen[str] | None" = None
    clients: list[httpx.Client] = field(default_factory=list)
    _admin: httpx.Client | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.path.parent / f"{self.home.path.name}-server.log"

    def start(self) -> None:
        self.port = self.port or find_free_port()
        with self.log.open("ab") as log:
            self.process = self.home.popen("serve", "--port", self.port, stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS_TO_START
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/api/v1/healthz").status_code == 200:
                    return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            kill(self.process, how)
            self.process = None

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.kill(signal.SIGTERM if sys.exc_info()[0] is None else signal.SIGKILL)

    @property
    def admin(self) -> httpx.Client:
        """The session of the first admin, by the login link that the first start prints."""
        if self._admin is None:
            (link,) = re.findall(r"\S+/login\?token=\S+", self.log.read_text())
            self._admin = self.session(link)
        return self._admin

    def set_rules(self, **changes: object) -> None:
        """Change how cards are dealt."""
        read = self.admin.get("/api/v1/rules")
        response = self.admin.put(
            "/api/v1/rules",
            json=read.json()["rules"] | changes,
            headers={"If-Match": read.headers["ETag"]},
        )
        assert response.status_code == 200, response.text

    def session(self, link: str) -> httpx.Client:
        """A browser that opened a login link."""
        client = self.connect({"Origin": self.url})
        redeemed = client.post("/api/v1/auth/redeem", json={"token": link.partition("token=")[2]})
        assert redeemed.status_code == 204, redeemed.text
        return client

    def login_link(self, person: Person) -> str:
        response = self.admin.post(f"/api/v1/users/{person.user_id}:login-link")
        assert response.status_code in (200, 201), response.text
        return str(response.json()["login_link"])

    def add(self, *roles: str, email: str | None = None) -> Person:
        """A new user with these roles, who opened their login link."""
        email = email or f"{'-'.join(roles) or 'nobody'}-{len(self.clients)}@example.org"
        answer = self.admin.post("/api/v1/users", json={"email": email, "roles": roles})
        assert answer.status_code == 201, answer.text
        added = answer.json()
        return Person(added["user_id"], email, self.session(added["login_link"]))

    def with_token(self, token: str) -> httpx.Client:
        """A program that bears a token."""
        return self.connect({"Authorization": f"Bearer {token}"})

    def connect(self, headers: dict[str, str] | None = None) -> httpx.Client:
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        self.clients.append(client)
        return client


def rows(client: httpx.Client, path: str, **params: object) -> list[dict[str, Any]]:
    """All items of a list of the API, newest first."""
    items: list[dict[str, Any]] = []
    while True:
        answer = client.get(f"/api/v1/{path}", params=params)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        page = answer.json()
        items += page["items"]
        if not page["next"]:
            return items
        params["cursor"] = page["next"]
