"""Prompts by distilabel's Self-Instruct, if that package is installed.

Without the package, `freeform` and `evolution` fill the same columns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.base import Draft, PromptParams
from rlhf_pipeline.generate.prompts.freeform import (
    INSTRUCTIONS,
    MAX_ROUNDS,
    cycle_lines,
    load_instructions,
    offer_generated,
)
from rlhf_pipeline.generate.prompts.generated_texts import ask
from rlhf_pipeline.generate.prompts.selection import Selection

AT_ONCE = 5  # prompts of one call, as Self-Instruct has it
NUMBERING = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")


class Task(Protocol):
    """The part of a distilabel task that is used: takes rows with `input`, yields batches of these
    rows with `instructions`.
    """

    def process(self, inputs: Any) -> Iterator[Sequence[Mapping[str, Any]]]: ...


class DistilabelGenerator:
    """Asks distilabel's SelfInstruct for prompts like the instruction lines of a category; the text
    generator is its LLM.
    """

    name: ClassVar[str] = "distilabel"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(
        self,
        source_file: Path | None = None,
        text_generator: TextGenerator | None = None,
        task: Task | None = None,
    ) -> None:
        """`task` is another of distilabel's tasks with the same columns, with its own LLM."""
        self._path = INSTRUCTIONS if source_file is None else source_file
        self._generator = text_generator
        self._task = task

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """See `PromptGenerator`. Raises PromptError if distilabel is not installed, or without a
        text generator.
        """
        lines = load_instructions(self._path, selection)
        rng = np.random.default_rng(seed)
        for attempt in range(MAX_ROUNDS):
            if selection.is_full:
                return
            task = self._task or build_self_instruct(self._generator, seed=seed + attempt)
            self._ask(task, [lines[i] for i in rng.permutation(len(lines))], selection)

    def _ask(self, task: Task, lines: Sequence[Draft], selection: Selection) -> None:
        """Request all missing prompts in one call."""
        requests = [
            (
                line,
                level or line.difficulty,
                f"{level or 'any'} difficulty, {line.category}: {line.text}",
            )
            for (category, level), n in selection.open_cells.items()
            for line in cycle_lines(lines, -(-n // AT_ONCE), category)
        ]
        rows = [
            row
            for batch in task.process([{"input": instruction} for _, _, instruction in requests])
            for row in batch
        ]
        for (line, level, _), row in zip(requests, rows, strict=True):
            texts = [
                NUMBERING.sub("", " ".join(str(text).split()))
                for text in row.get("instructions") or ()
            ]
            if not texts:
                selection.report.reject(
                    "written",
                    "distilabel gave no instructions for it",
                    where=f"instruction {line.text!r}",
                )
            offer_generated(
                [
                    Draft(text, line.category, level, variables={"instruction": line.text})
                    for text in texts
                ],
                selection,
            )


def build_self_instruct(text_generator: TextGenerator | None, *, seed: int = 0) -> Task:
    """distilabel's SelfInstruct over a text generator. Raises PromptError naming what is missing
    and an alternative.
    """
    instead = "or use the source freeform or evolution, which fill the same columns"
    try:
        from distilabel.models.llms import LLM
        from distilabel.steps.tasks import SelfInstruct
    except ImportError as cause:
        raise PromptError(
            f"distilabel cannot be imported ({cause}). Run `pip install distilabel requests`, "
            f"{instead}."
        ) from cause
    if text_generator is None:
        raise PromptError(f"The source distilabel needs a text generator. Pass one, {instead}.")
    writer: TextGenerator = text_generator

    class TextGeneratorLLM(LLM):  # type: ignore[misc]
        """The text generator as distilabel's LLM: one generation per input."""

        @property
        def model_name(self) -> str:
            return type(writer).__name__

        def generate(
            self,
            inputs: Sequence[Sequence[Mapping[str, str]]],
            num_generations: int = 1,
            **options: Any,
        ) -> list[dict[str, Any]]:
            instructions = ["\n\n".join(message["content"] for message in chat) for chat in inputs]
            texts = ask(writer, instructions, seed=seed)
            unknown = {"input_tokens": [0], "output_tokens": [0]}
            return [{"generations": [text or None], "statistics": unknown} for text in texts]

    task: Any = SelfInstruct(llm=TextGeneratorLLM(), num_instructions=AT_ONCE, input_batch_size=50)
    task.load()
    self_instruct: Task = task
    return self_instruct
