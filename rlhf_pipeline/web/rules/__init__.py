"""The rules of annotation, each edit a new version."""
