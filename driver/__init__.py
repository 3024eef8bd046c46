"""Runs jobs and sensor ticks in this process, with a clock passed in and one lock per home."""

import warnings

import dagster as dg

# As in definitions.py, which not every command imports: they would stand above its answer.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
