"""The RLHF loop as a library, from prompts to a retrained policy; independent of Dagster."""

__version__ = "0.1.0"
