"""Accounts and their roles."""
