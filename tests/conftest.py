"""Which tests go to the same worker when several run at once (`-n 2`). Knows paths only.

By path and not by the mark `xdist_group`: since pytest 9.2 the name that pytest-xdist 3.8 appends to a test's id is lost.
"""

from fnmatch import fnmatch
from typing import Any

import pytest

from tests.postgres import migrated_postgres, migrated_postgres_url, postgres, postgres_url  # noqa: F401 (fixtures)

# First match wins; every other file is a group of its own. Within a group projects are built once and shared; two daemons
# at once would want four cores.
GROUPS = {
    "tests/pipeline/test_daemon*": "daemon",
    "tests/pipeline/test_definitions.py": "definitions",
    "tests/pipeline/test_network.py": "network",
    "tests/pipeline/*": "pipeline",
}


def group_of(nodeid: str) -> str:
    """The group of a test, by its file."""
    path = nodeid.partition("::")[0]
    return next((group for pattern, group in GROUPS.items() if fnmatch(path, pattern)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
