"""The settings that the project runs with, and where each comes from."""
