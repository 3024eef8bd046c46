"""The run of the demo whose policy is trained further."""

from tests.acceptance.demo import demo  # noqa: F401 (fixture)
