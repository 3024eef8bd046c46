"""Drift and calibration events."""
