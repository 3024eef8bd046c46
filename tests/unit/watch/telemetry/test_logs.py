"""Log lines: from the level of the settings, without secrets."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.secret_files import generate_sealing_key, seal
from rlhf_pipeline.watch.telemetry.logs import OURS, configure_logs

WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEXT_SECRET = "whsec_Q2hhbmdlZCBhbmQgbG9uZyBlbm91Z2g5"
ours = logging.getLogger("rlhf_pipeline.store")
theirs = logging.getLogger("httpx")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    configure_logs(Settings())
    for name in OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    def read() -> list[str]:
        return capsys.readouterr().err.splitlines()

    return read


def test_secrets_of_the_settings_are_hidden_in_every_line(lines: Any):
    settings = Settings(
        api_key="sk-12345",
        server_url="postgresql://ann:pass%2Fword@db",
        otlp_headers="Authorization=Basic%20c2VjcmV0",
        alert_targets={
            "chat": {
                "channel": "webhook",
                "url": "https://chat.example/hooks/T0/x9",
                "secret": f"{WEBHOOK_SECRET} {NEXT_SECRET}",
            },
            "slack": {"channel": "apprise", "url": "slack://TokenA/TokenB%2B/TokenC/"},
            "mail": {"channel": "apprise", "url": "mailtos://ann:pa55@mail.example"},
            "ops-team": {"channel": "apprise", "url": "ntfys://ops-team/TokenD"},
        },
    )
    configure_logs(settings)
    hidden = ("sk-12345", "pass/word", "pass%2Fword", "c2VjcmV0", "/hooks/T0/x9", WEBHOOK_SECRET)
    hidden += (NEXT_SECRET, "pa55", "TokenA", "TokenB%2B", "TokenB+", "TokenC", "TokenD")
    for secret in hidden:
        theirs.error("said %s", secret)
    try:
        raise ValueError("sk-12345")
    except ValueError:
        ours.exception("failed at postgresql://ann:pass%2Fword@db")
    ours.warning("sent to ops-team")
    text_lines = "\n".join(lines())
    assert text_lines.count("…") >= 14
    assert "sent to ops-team" in text_lines, "a name of a target is no secret"
    assert not [secret for secret in hidden if secret in text_lines]


def test_secrets_in_files_are_hidden(tmp_path: Path, lines: Any):
    sealing_key = generate_sealing_key()
    files = {name: tmp_path / name for name in ("key", "secret", "url", "missing")}
    files["key"].write_text(seal(SecretStr("sk-sealed"), sealing_key))
    files["secret"].write_text(f"{WEBHOOK_SECRET} {NEXT_SECRET}\n")
    files["url"].write_text("slack://TokenA/TokenB/")
    targets = {
        "team": {
            "channel": "webhook",
            "url": "https://chat.example/x",
            "secret_file": str(files["secret"]),
        },
        "slack": {"channel": "apprise", "url_file": str(files["url"])},
        "mail": {"channel": "apprise", "url_file": str(files["missing"])},
    }
    configure_logs(
        Settings(
            api_key_file=files["key"],
            sealing_key=sealing_key,
            base_url="https://ann:of-the-proxy@proxy.example/v1?api-key=k%2F1&version=2026",
            alert_targets=targets,
        )
    )
    hidden = ("sk-sealed", WEBHOOK_SECRET, NEXT_SECRET, "TokenA", "TokenB", "of-the-proxy", "k%2F1")
    ours.warning("said %s", " and ".join((*hidden, "version=2026")))
    assert lines()[0].endswith("said " + " and ".join(["…"] * 7) + " and version=2026")
    files["missing"].write_text("mailtos://ann:pa55@mail.example")
    files["url"].write_text("slack://TokenX/TokenY/")
    ours.warning("said %s", " and ".join(("pa55", "TokenA", "TokenX", "TokenY")))
    assert lines()[0].endswith("said … and … and … and …")


def test_other_libraries_write_warnings_and_errors_only(lines: Any):
    def write() -> list[str]:
        for logger in (ours, theirs):
            logger.debug("debug")
            logger.warning("warning")
            logger.error("error")
        return [" ".join(line.split()[2:]) for line in lines()]

    configure_logs(Settings(log_level="debug"))
    assert write() == [
        "DEBUG rlhf_pipeline.store: debug",
        "WARNING rlhf_pipeline.store: warning",
        "ERROR rlhf_pipeline.store: error",
        "WARNING httpx: warning",
        "ERROR httpx: error",
    ]
    configure_logs(Settings(log_level="error"))  # again: no line is written twice
    assert write() == ["ERROR rlhf_pipeline.store: error", "ERROR httpx: error"]
