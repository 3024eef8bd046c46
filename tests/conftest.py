"""How the suite is divided: by folder into a fast tier and the rest, by database, and by worker."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.config import collect_garbage_rarely
from tests.once import migrated  # noqa: F401 (fixture)
from tests.postgres import (  # noqa: F401 (fixtures)
    migrated_postgres,
    migrated_postgres_url,
    postgres,
    postgres_url,
)

collect_garbage_rarely()

# Long files start first, so that no worker ends minutes after the others. Two daemons at once would
# want four cores. The first of them grows the project that most other files begin with; trainings
# need none, and keep the other workers from waiting for it.
DAEMONS = ("tests/processes/test_daemon", "tests/processes/test_dev")
LONG = (
    DAEMONS,
    "tests/training",
    "tests/processes",
    "tests/pipeline",
    "tests/providers",
    "tests/on_postgres",
    "tests/browser",
)

# What `--rest --postgres` repeats of the fast tier; of its other files it imports none.
ON_BOTH_DATABASES = ("tests/unit/store/", "tests/unit/cli/test_homes.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rlhf_pipeline")
    group.addoption(
        "--postgres",
        action="store_true",
        help="run what needs Postgres, and tests with the fixture `dialect` there too",
    )
    group.addoption(
        "--rest",
        action="store_true",
        help="leave out the fast tier: what pytest runs when no path is given",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # the order of collection stands: LONG first


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--rest`, whether a file has a target of its own (tests/acceptance) or is of the fast
    tier with nothing to repeat on Postgres.
    """
    if not config.getoption("--rest") or not collection_path.is_relative_to(config.rootpath):
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    if path == "tests/acceptance":
        return True
    return True if _is_fast(path, config) and not path.startswith(ON_BOTH_DATABASES) else None


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A command that starts the application leaves its home in the environment. Other variables
    are those of fixtures, some of which outlive a test.
    """
    before = _read_home_variables()
    yield
    for name in _read_home_variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _read_home_variables() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name.startswith(("RLHF_", "DAGSTER_"))
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`dialect` is "sqlite", with `--postgres` also "postgres", where a test does not say which it
    needs. Of the web app, whose SQL is tested with the store, one file runs on both.
    """
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "dialect" in metafunc.fixturenames and "dialect" not in marks:
        path = metafunc.definition.nodeid.partition("::")[0]
        is_on_both = not path.startswith("tests/web/") or path == "tests/web/test_idempotency.py"
        with_postgres = is_on_both and metafunc.config.getoption("--postgres")
        metafunc.parametrize("dialect", ["sqlite", "postgres"] if with_postgres else ["sqlite"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = [item for item in items if not _is_wanted(item, config)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]
    items.sort(
        key=lambda item: next(
            (n for n, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG)
        )
    )


def _is_fast(path: str, config: pytest.Config) -> bool:
    return path.endswith(".py") and path.startswith(tuple(config.getini("testpaths")))


def _is_misplaced(item: pytest.Item) -> bool:
    path, names = item.nodeid.partition("::")[0], getattr(item, "fixturenames", ())
    needs_a_database = "dialect" in names or "postgres" in names
    return (
        needs_a_database and _is_fast(path, item.config) and not path.startswith(ON_BOTH_DATABASES)
    )


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    if _is_misplaced(item):
        return True  # fails below, by name
    callspec = getattr(item, "callspec", None)
    on_postgres = callspec is not None and callspec.params.get("dialect") == "postgres"
    if on_postgres or "postgres" in getattr(item, "fixturenames", ()):
        return bool(config.getoption("--postgres"))
    return not (config.getoption("--rest") and _is_fast(item.nodeid.partition("::")[0], config))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_misplaced(item):
        pytest.fail(
            "This test runs on Postgres too, but `make test-rest` does not collect its file. Add "
            "the file to ON_BOTH_DATABASES in tests/conftest.py."
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """By path and not by the mark `xdist_group`: pytest 9.2 and pytest-xdist 3.8 lose the name
        appended to a test's id.
        """

        def _split_scope(self, nodeid: str) -> str:
            return "daemons" if nodeid.startswith(DAEMONS) else nodeid.partition("::")[0]

    return ByFile(config, log)
