"""The guidelines of annotation, each edit a new version."""
