"""Parameters of a day's prompts: the common ones and those of every source."""

from rlhf_pipeline.generate.prompts import GENERATORS, PromptParams


class SourceParams(*GENERATORS.params(PromptParams)):  # type: ignore[misc]
    """Parameters of every prompt source, installed ones included."""
