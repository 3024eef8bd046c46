"""Dagster's side of `rlhf storage`: what it recorded, whether it is awake, and its history on
another database.
"""
