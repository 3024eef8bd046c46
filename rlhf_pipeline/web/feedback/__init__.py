"""Feedback from applications that use a model."""
