"""Fixtures of the tests that ask a stub provider over HTTP."""

from tests.unit.completions.conftest import prompts, store  # noqa: F401 (fixtures)
