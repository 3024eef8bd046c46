"""The console log of runs, from the level of the settings."""

import logging

import dagster as dg
from dagster import _loggers  # the public API has no name for the logger of a run without its own

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.watch.telemetry.logs import build_handler

FIELDS = {
    "log_level": dg.Field(str, is_required=False, default_value="DEBUG"),
    "name": dg.Field(str, is_required=False, default_value="dagster"),
}


def use_run_logger(settings: Settings) -> None:
    """Let runs of this process write their console log from the level of the settings, where
    these name one.

    A run uses another logger only where its own configuration names one, and no sensor, schedule or
    launchpad would.
    """
    if settings.log_level is not None:
        _loggers.colored_console_logger = build_run_logger(settings)


def build_run_logger(settings: Settings) -> dg.LoggerDefinition:
    @dg.logger(FIELDS, description="Log lines of runs on stderr, as the settings say.")
    def console(context: dg.InitLoggerContext) -> logging.Logger:
        level = logging.getLevelNamesMapping()[context.logger_config["log_level"].upper()]
        least = logging.getLevelNamesMapping()[(settings.log_level or "debug").upper()]
        # not from logging.getLogger: each run has its own
        logger = logging.Logger(context.logger_config["name"], max(level, least))
        logger.addHandler(build_handler(settings))
        return logger

    return console
