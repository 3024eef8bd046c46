"""The channels by which alerts leave, and the targets that the settings configure."""

from rlhf_pipeline.alert_targets import (
    LOG,
    AlertTarget,
    AppriseTarget,
    EmailTarget,
    LogTarget,
    WebhookTarget,
)
from rlhf_pipeline.alerts.channels.apprise import AppriseChannel
from rlhf_pipeline.alerts.channels.base import Channel
from rlhf_pipeline.alerts.channels.email import EmailChannel
from rlhf_pipeline.alerts.channels.log import LogChannel
from rlhf_pipeline.alerts.channels.webhook import WebhookChannel
from rlhf_pipeline.config import Settings

__all__ = ["Channel", "channels_of", "target_names"]


def target_names(settings: Settings) -> tuple[str, ...]:
    """The log, which is a target without being configured, and the configured targets."""
    return tuple(dict.fromkeys((LOG, *(target.name for target in settings.alert_targets))))


def channels_of(settings: Settings) -> dict[str, Channel]:
    """A channel per target of `target_names`."""
    configured = {
        target.name: _build_channel(target, settings) for target in settings.alert_targets
    }
    return {LOG: LogChannel(), **configured}


def _build_channel(target: AlertTarget, settings: Settings) -> Channel:
    match target:
        case LogTarget():
            return LogChannel()
        case EmailTarget():
            return EmailChannel(target)
        case WebhookTarget():
            return WebhookChannel(target, allow_private=settings.alert_allow_private)
        case AppriseTarget():
            return AppriseChannel(target)
