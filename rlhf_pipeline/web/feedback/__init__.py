"""Feedback from where a model is used."""
