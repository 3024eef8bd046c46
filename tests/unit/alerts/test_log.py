"""Alerts in the log: one line each, at the level of their severity."""

import logging

import pytest

from rlhf_pipeline.alerts.channels.log import LogChannel
from rlhf_pipeline.alerts.messages import build_text
from rlhf_pipeline.monitoring import Alert, MessageKind
from tests.unit.alerts.conftest import NOON, message_about


@pytest.mark.parametrize("kind", ["opened", "resolved"])
def test_an_alert_is_one_line_of_its_severity(
    drift: Alert, kind: MessageKind, caplog: pytest.LogCaptureFixture
) -> None:
    message = message_about(drift.model_copy(update={"detail": "two\nlines\x1b[2J"}), kind)
    LogChannel().send(message, now=NOON, seconds=1)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.name == "rlhf_pipeline.alerts"
    text = record.getMessage()
    assert text.startswith(f"[demo] {'critical' if kind == 'opened' else kind}: Drift of the error")
    assert text.endswith("http://127.0.0.1:8080/drift")
    assert "\x1b" not in text
    assert "\n" not in text


def test_a_detail_in_the_title_is_not_repeated(
    drift: Alert, caplog: pytest.LogCaptureFixture
) -> None:
    told = {"title": "Preferences drifted: two lines", "detail": "two\nlines"}
    message = message_about(drift.model_copy(update=told))
    LogChannel().send(message, now=NOON, seconds=1)
    assert caplog.text.count("two") == 1
    assert build_text(message).count("two") == 1
