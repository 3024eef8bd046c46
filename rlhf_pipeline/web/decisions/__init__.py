"""Decisions of the retraining trigger, and what people answer."""
