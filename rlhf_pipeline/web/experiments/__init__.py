"""Experiments on served versions."""
