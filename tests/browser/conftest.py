"""A real browser for the tests of this folder. Knows Playwright; skipped with a reason where there
is no Chromium.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import chromium_or_skip
from tests.browser.people import People, people


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Ended with each file: while Playwright runs, no other test of this process can run an event
    loop.
    """
    executable = chromium_or_skip()
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is in the dev extra: pip install -e '.[dev]'"
    )
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def site(tmp_path: Path, migrated: Path) -> Iterator[People]:
    with people(tmp_path / "home", migrated) as running:
        yield running


@pytest.fixture
def context(browser):  # type: ignore[no-untyped-def]
    """A window of its own, with the errors its pages raised."""
    browser_context = browser.new_context(
        viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    browser_context.set_default_timeout(60_000)
    errors: list[str] = []
    browser_context.on("weberror", lambda error: errors.append(str(error.error)))
    browser_context.on(
        "console",
        lambda message: (
            errors.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    yield browser_context
    browser_context.close()
    assert errors == [], f"the pages raised: {errors}"
