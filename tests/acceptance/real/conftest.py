"""The home of all real votes."""

from tests.acceptance.real.votes import imported  # noqa: F401 (fixture)
