"""Builds static pages and pictures of drift, calibration, annotators and training.

A module per subject builds `Chart` records (`chart.py`); `draw.py` renders any of them as PNG or
SVG; `drift_page.py` builds the day's HTML page.
"""
