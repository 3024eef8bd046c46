"""Writes alerts to the log of the process that sends them."""

import logging
from datetime import datetime

from rlhf_pipeline.alerts.messages import build_subject
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.terminal import escape_controls

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
logger = logging.getLogger("rlhf_pipeline.alerts")


class LogChannel:
    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        data = message.payload["data"]
        level = logging.INFO if message.kind == "resolved" else LEVELS[data["severity"]]
        parts = (build_subject(message), data["detail"], data["link"])
        logger.log(level, "%s", escape_controls(" ".join(part for part in parts if part)))
        return "written to the log"
