"""Static pages and pictures of drift, calibration, annotators and training.

A module per subject builds `Chart` records (`chart.py`); `draw.py` makes a PNG or an SVG of any of
them; `drift_page.py` fills the day's HTML page.
"""
