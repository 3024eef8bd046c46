"""Comparisons: read them, offer them to annotators, withdraw open judgements."""
