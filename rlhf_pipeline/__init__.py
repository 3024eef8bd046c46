"""The RLHF loop as a library: it knows prompts, votes and models; it knows nothing of Dagster."""

__version__ = "0.1.0"
