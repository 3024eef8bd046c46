"""Fixtures of the tests that start, watch and kill processes: daemons, servers, runs."""

from tests.project import (  # noqa: F401 (fixtures)
    branch,
    few_prompts,
    grown,
    initialised_home,
    make_project,
    quiet_libraries,
    small_policy,
)
from tests.unit.cli.conftest import tiny_policy  # noqa: F401 (fixture)
