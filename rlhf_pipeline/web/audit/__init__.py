"""The audit chain: read, export and verify it."""
