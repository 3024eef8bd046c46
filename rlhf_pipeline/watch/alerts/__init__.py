"""Alerts: which rules are broken, which incidents are open, and the messages about them."""
