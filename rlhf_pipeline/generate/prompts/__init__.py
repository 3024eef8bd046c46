"""Prompts of a day from one of several sources."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.conversations import prompt_id
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.plugins import Members, select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.base import (
    PromptGenerator,
    PromptParams,
    day_seed,
    quotas,
)
from rlhf_pipeline.generate.prompts.constraints import Embed
from rlhf_pipeline.generate.prompts.dataset import (
    DatasetGenerator,
    DatasetParams,
    write_jsonl,
)
from rlhf_pipeline.generate.prompts.distilabel import DistilabelGenerator
from rlhf_pipeline.generate.prompts.evolution import EvolutionGenerator
from rlhf_pipeline.generate.prompts.freeform import FreeformGenerator
from rlhf_pipeline.generate.prompts.references import is_right
from rlhf_pipeline.generate.prompts.selection import Rejection, Report, Selection
from rlhf_pipeline.generate.prompts.templates import TemplateGenerator

# A new generator: one file with one class that satisfies base.PromptGenerator, and one line here.
GENERATORS = Members[type[PromptGenerator]](
    "prompts",
    {
        "templates": TemplateGenerator,
        "dataset": DatasetGenerator,
        "freeform": FreeformGenerator,
        "evolution": EvolutionGenerator,
        "distilabel": DistilabelGenerator,
    },
)
EXISTING_SOURCES = ("templates", "dataset")  # sources that read prompts and cannot write any

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

    `params` may be a SourceParams, which also has the parameters of each source. `source_file` is
    the input of the source: a template library, a data set or a list of instructions. `exclude`
    holds prompt ids to leave out (earlier days, the frozen evaluation set); `report` collects the
    outcome of every prompt; `embed` is a sentence encoder, which a topic needs. Raises PromptError
    with the row and the fix.
    """
    kind = GENERATORS[params.source]
    if text_generator is not None and params.source in EXISTING_SOURCES:
        raise PromptError(
            f"The source {params.source} writes nothing and cannot use a text generator. Leave the "
            "text generator out, or choose another source."
        )
    generator = kind(source_file=source_file, text_generator=text_generator)
    read = select_params(DatasetParams, params).dataset or source_file
    what = (
        "The template library"
        if params.source == "templates"
        else str(read or f"The source {params.source}")
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
    """`generate` with a generator that the caller made, such as an evolution with another fitness.
    `what` names it in the error if it has too few prompts.
    """
    seed = day_seed(params.seed, day)
    selection = Selection(params, exclude=exclude, report=report, embed=embed)
    generator.generate(params, seed=seed, selection=selection)
    return selection.build_frame(
        source=generator.name, what=what or f"The source {generator.name}", day=day, seed=seed
    )
