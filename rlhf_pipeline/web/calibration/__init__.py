"""Calibrators over time, and predictions compared with later votes."""
