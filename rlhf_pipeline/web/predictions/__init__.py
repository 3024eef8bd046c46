"""Predictions of the reward model."""
