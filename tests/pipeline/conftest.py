"""Fixtures of the tests that materialise assets in this process."""

from tests.project import (  # noqa: F401 (fixtures)
    branch,
    few_prompts,
    grown,
    initialised_home,
    make_project,
    quiet_libraries,
    small_policy,
)
