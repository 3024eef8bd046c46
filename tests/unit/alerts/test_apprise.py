"""apprise sends from a process of its own, which gets the URL on its standard input."""

import json
import sys
import time

import pytest
from pydantic import SecretStr

from rlhf_pipeline.alert_targets import AppriseTarget
from rlhf_pipeline.alerts.channels.apprise import AppriseChannel
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from tests.unit.alerts.conftest import NOON
from tests.unit.alerts.receivers import Hook, serve_hook


def send(message: AlertMessage, url: str) -> str:
    target = AppriseTarget(name="chat", channel="apprise", url=SecretStr(url))
    return AppriseChannel(target).send(message, now=NOON, seconds=30)


def test_a_service_receives_title_and_text(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=200)) as hook:
        assert send(opened, f"json://127.0.0.1:{hook.port}/") == "apprise sent the message"
    ((_, body),) = hook.received
    received = json.loads(body)
    assert received["title"] == "[demo] critical: Drift of the error rate"
    assert "Cause: taste changed" in received["message"]
    assert received["type"] == "failure"


def test_a_refusing_service_is_named_without_its_token(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=403)) as hook, pytest.raises(DeliveryFailed) as refusal:
        send(opened, f"json://127.0.0.1:{hook.port}/s3cr3t-t0ken")
    assert "403" in str(refusal.value)
    assert "s3cr3t-t0ken" not in str(refusal.value)
    with pytest.raises(DeliveryFailed, match="does not know the URL") as refusal:
        send(opened, "nosuchservice://s3cr3t-t0ken")
    assert "s3cr3t-t0ken" not in str(refusal.value)


def test_a_service_that_hangs_is_left_after_the_longest_time(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=200, delay_s=3)) as hook:
        target = AppriseTarget(
            name="chat", channel="apprise", url=SecretStr(f"json://127.0.0.1:{hook.port}/")
        )
        began = time.monotonic()
        with pytest.raises(DeliveryFailed, match="longer than 1 s"):
            AppriseChannel(target, longest_s=1).send(opened, now=NOON, seconds=30)
        assert time.monotonic() - began < 5


def test_the_missing_package_is_named(
    opened: AlertMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rlhf-pipeline\[alerts\]'"):
        send(opened, "json://127.0.0.1/")
