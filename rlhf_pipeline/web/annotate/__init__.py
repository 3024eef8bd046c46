"""Judging: lease cards, show them, and give them back."""
