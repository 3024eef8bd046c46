"""Prompts of a day from one of several sources. Knows which generators there are; knows nothing of
completions.

One file per generator; a new one is a file with a class that satisfies `base.PromptGenerator` and a
line in GENERATORS.
"""

from importlib.metadata import entry_points
from pathlib import Path

import pandas as pd

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.prompts.base import PromptGenerator, PromptParams, day_seed, prompt_id, quotas
from rlhf_pipeline.prompts.constraints import Embed
from rlhf_pipeline.prompts.dataset import DatasetGenerator, read_jsonl, write_jsonl
from rlhf_pipeline.prompts.distilabel import DistilabelGenerator
from rlhf_pipeline.prompts.evolution import EvolutionGenerator
from rlhf_pipeline.prompts.freeform import FreeformGenerator
from rlhf_pipeline.prompts.references import is_right
from rlhf_pipeline.prompts.selection import Rejection, Report, Selection
from rlhf_pipeline.prompts.templates import TemplateGenerator
from rlhf_pipeline.protocols import TextGenerator

_OWN: dict[str, type] = {
    "templates": TemplateGenerator,
    "dataset": DatasetGenerator,
    "freeform": FreeformGenerator,
    "evolution": EvolutionGenerator,
    "distilabel": DistilabelGenerator,
}
GENERATORS = Members("prompts", _OWN)
EXISTING_SOURCES = ("templates", "dataset")  # whose prompts stand somewhere already


def source_names() -> list[str]:
    """What `source` may be, by name alone: packages that bring one are not imported for it."""
    return [*_OWN, *sorted(point.name for point in entry_points(group="rlhf_pipeline.prompts"))]


__all__ = [
    "GENERATORS",
    "PromptGenerator",
    "PromptParams",
    "Rejection",
    "Report",
    "Selection",
    "day_seed",
    "generate",
    "generate_with",
    "is_right",
    "prompt_id",
    "quotas",
    "read_jsonl",
    "source_names",
    "write_jsonl",
]


def generate(
    params: PromptParams,
    *,
    day: str,
    source_file: Path | None = None,
    text_generator: TextGenerator | None = None,
    exclude: frozenset[str] = frozenset(),
    report: Report | None = None,
    embed: Embed | None = None,
) -> pd.DataFrame:
    """The PROMPTS of `day`: exactly `params.n`, the same for the same params and day.

    `source_file` is a template library, a data set or a list of instructions, as the source has it;
    `exclude` holds prompt ids that must not come (earlier days, the frozen evaluation set);
    `report` is told what became of every prompt; `embed`, a sentence encoder, is what a topic
    needs. Raises PromptError naming row and cure.
    """
    if params.source not in GENERATORS:
        raise PromptError(f"No prompt source {params.source!r}. Known: {', '.join(GENERATORS)}.")
    if text_generator is not None and params.source in EXISTING_SOURCES:
        raise PromptError(
            f"The source {params.source} writes nothing, so a text generator is of no use to it. "
            "Leave it out, or set the source."
        )
    generator: PromptGenerator = GENERATORS[params.source](
        source_file=source_file, text_generator=text_generator
    )
    what = (
        "The template library"
        if params.source == "templates"
        else str(params.dataset or source_file or f"The source {params.source}")
    )
    return generate_with(
        generator, params, day=day, exclude=exclude, report=report, embed=embed, what=what
    )


def generate_with(
    generator: PromptGenerator,
    params: PromptParams,
    *,
    day: str,
    exclude: frozenset[str] = frozenset(),
    report: Report | None = None,
    embed: Embed | None = None,
    what: str | None = None,
) -> pd.DataFrame:
    """`generate` by a generator of one's own, such as an evolution with another fitness; `what`
    names it where it has too few prompts.
    """
    seed = day_seed(params.seed, day)
    selection = Selection(params, exclude=exclude, report=report, embed=embed)
    generator.generate(params, seed=seed, selection=selection)
    return selection.build_frame(
        source=generator.name, what=what or f"The source {generator.name}", day=day, seed=seed
    )
