"""Accuracy beside its noise ceiling, calibration and drift by day."""
