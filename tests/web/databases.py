"""Mark for tests in which the kind of database does not matter: they run on SQLite alone."""

import pytest

on_sqlite = pytest.mark.parametrize("dialect", ["sqlite"])
