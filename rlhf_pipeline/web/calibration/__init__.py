"""Calibrators over time, and predictions compared with later votes.

`probe_counter` reads predictions and votes; `learn.calibration.summary` computes ECE, Brier score
and slope.
"""
