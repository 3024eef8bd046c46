"""Finds the Dagster application of the checkout: the one arrow from the library up to it.

The application reads its settings from the environment when it is imported, so the environment is
set first, and a process works in one home.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.config import ENV_PREFIX, Settings


def load_driver(settings: Settings, **variables: str) -> Any:
    """The module `driver.commands`, for the home of `settings`; `variables` are settings that win.

    Importing it takes Dagster's seconds, so a command does it last.
    """
    folder = str(checkout())
    os.environ.update(settings.environ | variables)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return import_module("driver.commands")


def load_driver_in_new_home(home: Path, **variables: str) -> Any:
    """Like `load_driver`, in a new home with these settings and no others of the environment."""
    config = home / "rlhf.yaml"
    config.write_text("{}\n")  # so that no rlhf.yaml of the checkout is read
    own = {f"{ENV_PREFIX}HOME": str(home), f"{ENV_PREFIX}CONFIG": str(config), **variables}
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        del os.environ[name]
    settings = Settings.read(own, initialising=True)
    initialise(Workspace(settings))
    return load_driver(settings, **own)
