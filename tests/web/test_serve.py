"""`rlhf serve` as an operator meets it: ready soon, one link for the first admin, an end
when told.
"""

import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from tests.serving import RLHF, server_environment
from tests.web.served import PROJECT, Served, served

BY_DEFAULT = "http://127.0.0.1:8080"


@pytest.fixture
def server(tmp_path: Path):
    with served(f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "home") as server:
        yield server


def test_only_the_first_start_prints_a_login_link(
    server: Served,
) -> None:
    server.start()
    link = next(word for word in server.log.read_text().split() if "/login?token=" in word)
    assert "first admin, admin@localhost, once" in server.log.read_text()
    assert link.startswith(server.address)
    redeemed = httpx.post(
        f"{server.address}/api/v1/auth/redeem",
        json={"token": link.partition("token=")[2]},
        headers={"Origin": server.address},
    )
    assert redeemed.status_code == 204
    me = httpx.get(f"{server.address}/api/v1/me", cookies=redeemed.cookies).json()
    assert (me["roles"], me["project"]) == (["admin"], PROJECT)
    server.kill(signal.SIGTERM)
    server.start()
    assert server.log.read_text().count("/login?token=") == 1


def test_server_starts_in_an_empty_home_and_ends_on_a_signal(server: Served) -> None:
    server.start()
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(120)


def test_used_port_is_named_with_its_option(server: Served) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server.home.mkdir()
        command = [RLHF, "serve", "--port", str(port)]
        done = subprocess.run(
            command,
            env=server_environment(server.url, server.home),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def rlhf(server: Served, *arguments: str, **environ: str) -> str:
    """What a command prints on the server's home."""
    environ = server_environment(server.url, server.home) | environ
    return CliRunner().invoke(app, arguments, env=environ, catch_exceptions=False).output


def linked(server: Served, **environ: str) -> str:
    """The address in a login link that an operator has printed."""
    output = rlhf(server, "users", "login-link", "admin@localhost", **environ)
    (address,) = re.findall(r"(\S+)/login\?token=rlhf_", output)
    return address


def test_login_link_uses_the_configured_address(server: Served) -> None:
    server.start()
    assert linked(server) == BY_DEFAULT
    assert linked(server, RLHF_WEB_URL="https://vote.example.org") == "https://vote.example.org"
