"""Learns a reward model from preference pairs, calibrates it, and decides which version serves.

In: preference pairs and their splits. Out: model versions with their reports, a calibration, and
the champion whose predictions comparisons carry. The assets are `reward_model` and `calibration`;
`champions` is where store, registry and models meet.
"""
