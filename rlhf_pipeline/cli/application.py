"""Finds the Dagster application: the one arrow from the library up to it.

The application reads its settings from the environment when it is imported, so the environment is
set first, and a process works in one home.
"""

import os
from importlib import import_module
from typing import Any

from rlhf_pipeline.core.config import Settings


def load_driver(settings: Settings, **variables: str) -> Any:
    """The module `driver.commands`, for the home of `settings`; `variables` are settings that win.

    Importing it takes Dagster's seconds, so a command does it last.
    """
    os.environ.update(settings.environ | variables)
    return import_module("rlhf_pipeline.application.driver.commands")
