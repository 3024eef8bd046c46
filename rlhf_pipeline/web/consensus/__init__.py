"""The combined judgement on each comparison."""
