"""Marks for tests of one kind of database: `url` and `store` are that kind's alone."""

import pytest

on_sqlite = pytest.mark.parametrize("dialect", ["sqlite"])
on_postgres = pytest.mark.parametrize("dialect", ["postgres"])
