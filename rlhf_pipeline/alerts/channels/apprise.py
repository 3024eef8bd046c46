"""Sends alerts to a service that the package `apprise` knows, from a process of its own."""

import json
import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec

from rlhf_pipeline.alert_targets import AppriseTarget
from rlhf_pipeline.alerts.messages import build_subject, build_text
from rlhf_pipeline.completions.redaction import redact, secrets_of
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.secret_files import read_secret

PROCESS = "rlhf_pipeline.alerts.apprise_process"
LONGEST_S = 10.0  # of one attempt, whatever the caller allows


class AppriseChannel:
    def __init__(self, target: AppriseTarget, *, longest_s: float = LONGEST_S):
        self._target, self._longest_s = target, longest_s

    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        if find_spec("apprise") is None:
            raise ConfigurationError(
                "The package apprise is not installed. Run pip install 'rlhf-pipeline[alerts]'."
            )
        url = read_secret(self._target.url, self._target.url_file)
        seconds = min(seconds, self._longest_s)
        order = {
            "url": url,  # on standard input: command lines are readable by everybody
            "title": build_subject(message),
            "body": build_text(message),
            "severity": message.payload["data"]["severity"],
            "kind": message.kind,
            "seconds": seconds,
        }
        try:
            ended = subprocess.run(
                [sys.executable, "-m", PROCESS],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DeliveryFailed(f"The service took longer than {seconds:.0f} s.") from None
        if ended.returncode != 0:
            lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
            reason = redact(" ".join(lines[-3:]), url, *_url_parts(url))
            raise DeliveryFailed(f"apprise did not send the message: {reason}")
        return "apprise sent the message"


def _url_parts(url: str) -> tuple[str, ...]:
    """Everything after the scheme may be a token."""
    rest = url.partition("://")[2]
    return (rest, *(part for part in rest.replace("@", "/").split("/") if part), *secrets_of(url))
