"""Predictions of the reward model, and completions made on request."""
