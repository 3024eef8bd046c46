"""Notices that votes move away from the predictions that came before them, and finds the cause.

In: votes beside the champion's predictions (`reflection`). Out: drift events with their causes,
metric points, alerts and their messages, telemetry. The assets are `reflection_log` and
`drift_report`.
"""
