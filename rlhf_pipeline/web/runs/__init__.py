"""Runs of the loop, its schedules and sensors, and what it spends."""
