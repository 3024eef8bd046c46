"""`rlhf alerts messages`, `replay` and `test`."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.cli import app
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.store import Store
from tests.unit.alerts.receivers import Hook, serve_hook

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serve_hook(Hook()) as hook:
        yield hook


@pytest.fixture
def environ(tmp_path: Path, hook: Hook) -> dict[str, str]:
    targets = {"team": {"channel": "webhook", "url": hook.url, "secret": SECRET}}
    return {
        "RLHF_HOME": str(tmp_path / "home"),
        "RLHF_ALERT_TARGETS": json.dumps(targets),
        "RLHF_ALERT_ALLOW_PRIVATE": "true",
        "COLUMNS": "250",
    }


def rlhf(environ: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["alerts", *arguments], env=environ, catch_exceptions=False)


def test_a_test_message_says_what_happened(environ: dict[str, str], hook: Hook) -> None:
    result = rlhf(environ, "test", "team")
    assert result.exit_code == 0
    assert result.output.endswith("to team: 127.0.0.1 answered 204.\n")
    assert json.loads(hook.received[0][1])["type"] == "alert.test"
    hook.status = 500
    result = rlhf(environ, "test", "team")
    assert result.exit_code == 1
    assert "to team failed: 127.0.0.1 answered 500" in result.output
    with pytest.raises(ConfigurationError, match=r"No target 'boss'.*Targets: log, team\."):
        rlhf(environ, "test", "boss")


def test_dead_messages_are_listed_and_replayed(environ: dict[str, str]) -> None:
    assert rlhf(environ, "messages").output == "No message about an alert.\n"
    settings = Settings.read(environ)
    now = datetime.now(UTC)
    with Store.of_home(settings) as store:
        for target in ("team", "team", "boss"):
            message = build_test_message(target, project="demo", link="", now=now)
            store.alert_messages.add([message])
            error = "127.0.0.1 answered 500"
            store.alert_messages.mark_failed(message.message_id, error, next_attempt_at=None)
        listed = json.loads(rlhf(environ, "messages", "--state", "dead", "--json").output)
        assert [each["last_error"] for each in listed] == ["127.0.0.1 answered 500"] * 3
        assert "answered 500" in rlhf(environ, "messages").output
        first = listed[0]["message_id"]
        assert rlhf(environ, "replay", first).output == "1 message will be sent again.\n"
        with pytest.raises(NotFound, match="No dead message"):
            rlhf(environ, "replay", first)
        assert "2 messages will" in rlhf(environ, "replay", "--all-dead").output
        assert store.alert_messages.page(state="dead") == []
    assert rlhf(environ, "replay").exit_code == 2


def test_no_command_shows_a_secret(environ: dict[str, str], hook: Hook) -> None:
    hook.status, hook.text = 500, f"{SECRET} abcdefgh".encode()
    shown = "".join(
        rlhf(environ, *arguments).output for arguments in (("test", "team"), ("messages", "--json"))
    )
    shown += CliRunner().invoke(app, ["settings", "show"], env=environ).output
    assert not [secret for secret in (SECRET, "abcdefgh") if secret in shown]
