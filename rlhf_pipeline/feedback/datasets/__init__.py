"""Imports and exports files of comparisons, votes and prompts."""
