"""Finds the Dagster application of the checkout: the one arrow from the library up to it.

The application reads its settings from the environment when it is imported, so the environment is
set first, and a process works in one home.
"""

import os
import sys
from importlib import import_module
from typing import Any

from rlhf_pipeline.cli.context import checkout
from rlhf_pipeline.config import Settings


def load_driver(settings: Settings, **variables: str) -> Any:
    """The module `driver.commands`, for the home of `settings`; `variables` are settings that win.

    Importing it takes Dagster's seconds, so a command does it last.
    """
    folder = str(checkout())
    os.environ.update(settings.environ | variables)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return import_module("driver.commands")
