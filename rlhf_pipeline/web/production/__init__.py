"""Figures of models in production, sent by applications."""
