"""Drift over days: the verdict of every detector, and the tests of one day."""
