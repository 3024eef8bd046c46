"""Runs jobs and sensor ticks in this process, with a clock passed in and one lock per home."""
