"""Data quality by annotator."""
