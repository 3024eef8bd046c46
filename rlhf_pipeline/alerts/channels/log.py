"""Writes alerts to the log of the process that sends them."""

import logging
from datetime import datetime

from rlhf_pipeline.alerts.messages import build_subject, find_new_detail
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.terminal import escape_controls

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
logger = logging.getLogger("rlhf_pipeline.alerts")


class LogChannel:
    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        data = message.payload["data"]
        # The end of an alert has its severity too: it is read where its beginning was. A test is a
        # warning, which logs show by default.
        severity = "warning" if message.kind == "test" else data["severity"]
        parts = (build_subject(message), find_new_detail(data), data["link"])
        line = " ".join(" ".join(part for part in parts if part).split())
        logger.log(LEVELS[severity], "%s", escape_controls(line))
        return "written to the log"
