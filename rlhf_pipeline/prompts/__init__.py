"""Prompts of a day from one of several sources. Knows which generators there are; knows nothing of completions.

One file per generator; a new one is a file with a class that satisfies `base.PromptGenerator` and a line in GENERATORS.
"""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.prompts.base import PromptGenerator, PromptParams, day_seed, prompt_id, quotas
from rlhf_pipeline.prompts.dataset import DatasetGenerator, read_jsonl, write_jsonl
from rlhf_pipeline.prompts.freeform import FreeformGenerator
from rlhf_pipeline.prompts.references import is_right
from rlhf_pipeline.prompts.templates import TemplateGenerator
from rlhf_pipeline.protocols import TextGenerator

_OWN: dict[str, type] = {
    "templates": TemplateGenerator,
    "dataset": DatasetGenerator,
    "freeform": FreeformGenerator,
}
GENERATORS = Members("prompts", _OWN)

__all__ = [
    "GENERATORS", "PromptGenerator", "PromptParams", "day_seed", "generate", "is_right", "prompt_id", "quotas", "read_jsonl", "write_jsonl",
]  # fmt: skip


def generate(
    params: PromptParams,
    *,
    day: str,
    source_file: Path | None = None,
    text_generator: TextGenerator | None = None,
    exclude: frozenset[str] = frozenset(),
) -> pd.DataFrame:
    """The PROMPTS of `day`: exactly `params.n`, the same for the same params and day.

    `source_file` is a template library, a data set or a list of instructions, as the source has it; `exclude` holds
    prompt ids that must not come (earlier days, the frozen evaluation set). Raises PromptError naming row and cure.
    """
    if params.source not in GENERATORS:
        raise PromptError(f"No prompt source {params.source!r}. Known: {', '.join(GENERATORS)}.")
    generator: PromptGenerator = GENERATORS[params.source](source_file=source_file, text_generator=text_generator)
    return generator.generate(params, day=day, seed=day_seed(params.seed, day), exclude=exclude)
