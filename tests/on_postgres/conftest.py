"""Fixtures of the tests that need Postgres: a store and the frames that fill it."""

from tests.unit.cli.conftest import tiny_policy  # noqa: F401 (fixture)
from tests.unit.store.conftest import (  # noqa: F401 (fixtures)
    make_comparisons,
    make_predictions,
    make_vote,
    store,
    url,
)
