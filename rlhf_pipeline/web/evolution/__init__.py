"""Versions of policies and reward models, with gate decisions and training data."""
