"""Logging in and out, by password or one-time link."""
