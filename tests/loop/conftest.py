"""Fixtures of one run of the whole loop."""

from tests.project import (  # noqa: F401 (fixtures)
    branch,
    grown,
    initialised_home,
    make_project,
    quiet_libraries,
    small_policy,
)
