"""Homes, servers, people and a browser for the acceptance tests."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.demo import demo  # noqa: F401 (fixture)
from tests.acceptance.home import Home, Server
from tests.browser.chromium import chromium_or_skip
from tests.once import build_once


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home fresh from `rlhf init`, to be copied."""

    def initialise(folder: Path) -> None:
        folder.mkdir()
        Home(folder / "home").run("init")

    return build_once(tmp_path_factory, "acceptance", initialise) / "home"


@pytest.fixture
def home(initialised: Path, tmp_path: Path) -> Home:
    """A fresh home of this test."""
    return Home(shutil.copytree(initialised, tmp_path / "home"))


@pytest.fixture
def serve() -> Iterator[Callable[[Home], Server]]:
    """Starts servers on homes; they end with the test."""
    servers: list[Server] = []

    def start(home: Home) -> Server:
        servers.append(Server(home))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(home: Home, serve: Callable[[Home], Server]) -> Server:
    """A server on the fresh home of this test."""
    return serve(home)


@pytest.fixture(scope="module")
def site(initialised: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server shared by the tests of a file, with 40 comparisons offered to people."""
    home = Home(shutil.copytree(initialised, tmp_path_factory.mktemp("site") / "home"))
    home.offer(40)
    server = Server(home)
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. It ends with each file: while Playwright runs, this process can run no other event
    loop.
    """
    executable = chromium_or_skip()
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser window of its own; fails the test if one of its pages raised an error."""
    browser_context = browser.new_context(
        viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    browser_context.set_default_timeout(60_000)
    errors: list[str] = []
    browser_context.on("weberror", lambda error: errors.append(str(error.error)))
    yield browser_context
    browser_context.close()
    assert errors == []
