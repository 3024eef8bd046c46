"""Fixtures of one run of the whole loop."""

from tests.project import branch, grown, initialised_home, make_project, quiet_libraries, small_policy  # noqa: F401 (fixtures)
