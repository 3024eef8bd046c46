"""Where Chromium is on this machine, and whether tests may be skipped without it. `python -m
tests.browser.chromium` says so in words.

Debian: `apt-get install -y chromium`. Elsewhere name yours by CHROMIUM=/path, or let `playwright
install chromium` fetch one.
"""

import os
import shutil
import sys

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CURE = (
    "Install it (Debian: apt-get install -y chromium), or name yours by CHROMIUM=/path/to/chromium."
)


def find_chromium() -> str | None:
    """Path of an installed Chromium; None where there is none."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for path in map(shutil.which, NAMES) if path), None)


def chromium_or_skip() -> str:
    """Its path. Without it the test is skipped with the cure, or fails where REQUIRE_BROWSER=1 says
    that it must run.
    """
    path = find_chromium()
    if path is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(f"REQUIRE_BROWSER=1, and there is no Chromium. {CURE}")
        pytest.skip(f"no Chromium on this machine. {CURE}")
    return path


if __name__ == "__main__":
    path = find_chromium()
    print(path or f"no Chromium. {CURE}")
    sys.exit(path is None)
