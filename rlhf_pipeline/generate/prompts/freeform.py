"""Prompts from free-form instructions, written by a text generator or used unchanged."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import yaml
from pydantic import BaseModel

from rlhf_pipeline.core.documents import parse_yaml
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.base import Draft, PromptParams
from rlhf_pipeline.generate.prompts.dataset import read_drafts
from rlhf_pipeline.generate.prompts.generated_texts import ask, find_prompt_fault
from rlhf_pipeline.generate.prompts.rows import PromptRow, read_rows
from rlhf_pipeline.generate.prompts.selection import Selection

INSTRUCTIONS = Path(__file__).with_name("instructions.yaml")
MAX_ROUNDS = 5


class FreeformGenerator:
    """Instruction lines by category: given to a text generator or, without one, used as prompts.
    The lines are the shipped ones or those of a file: YAML of `category: [lines]`, plain text with
    a line each, or any file the dataset source reads.
    """

    name: ClassVar[str] = "freeform"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(
        self, source_file: Path | None = None, text_generator: TextGenerator | None = None
    ) -> None:
        self._path = INSTRUCTIONS if source_file is None else source_file
        self._generator = text_generator

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """See `PromptGenerator`; a text generator is called again, up to five times, while its
        texts repeat or break a rule.
        """
        lines = load_instructions(self._path, selection)
        shuffled = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))]
        if self._generator is None:
            selection.offer_all(shuffled)
            return
        for attempt in range(MAX_ROUNDS):
            if selection.is_full:
                return
            self._write(self._generator, shuffled, seed + attempt, selection)

    def _write(
        self, generator: TextGenerator, lines: list[Draft], seed: int, selection: Selection
    ) -> None:
        """Request one text per missing prompt. The request names the level of a cell, because the
        lines have none.
        """
        requests = [
            (
                line,
                level or line.difficulty,
                f"Write one {level} prompt" if level else "Write one prompt",
            )
            for (category, level), n in selection.open_cells.items()
            for line in cycle_lines(lines, n, category)
        ]
        instructions = [
            f"{how}, as one line, that asks for this: {line.text}" for line, _, how in requests
        ]
        drafts = [
            Draft(
                " ".join(text.split()), line.category, level, variables={"instruction": line.text}
            )
            for (line, level, _), text in zip(
                requests, ask(generator, instructions, seed=seed), strict=True
            )
        ]
        offer_generated(drafts, selection)


def offer_generated(drafts: Iterable[Draft], selection: Selection) -> None:
    """Offer the drafts that can be prompts, named by the instruction they were written for; report
    the others as rejected.
    """
    may_be = []
    for draft in drafts:
        if (why := find_prompt_fault(draft.text)) is None:
            may_be.append(draft)
        else:
            selection.report.reject("written", why, where=_name_origin(draft), text=draft.text)
    selection.offer_all(may_be, map(_name_origin, may_be))


def _name_origin(draft: Draft) -> str:
    return f"text written for the instruction {draft.variables['instruction']!r}"


def load_instructions(path: Path, selection: Selection) -> list[Draft]:
    """Instruction lines of a file; other lines are rejected in the selection's report. Raises
    PromptError for a file that cannot be read.
    """
    return [draft for _, draft in read_drafts(_read_lines(path), selection.report)]


def _read_lines(path: Path) -> Iterator[PromptRow]:
    suffix = path.suffix.lower()
    if suffix not in (".yaml", ".yml", ".txt"):
        yield from read_rows(path)
        return
    try:
        text = path.read_text(encoding="utf-8")
        by_category = parse_yaml(text) if suffix != ".txt" else {"": text.split("\n")}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise PromptError(
            f"Instructions {path} cannot be read ({cause}). Give UTF-8 text, or UTF-8 YAML of "
            "`category: [lines]`."
        ) from cause
    if not isinstance(by_category, dict) or not all(
        isinstance(texts, list) for texts in by_category.values()
    ):
        raise PromptError(f"Instructions {path} must be `category: [lines]`.")
    for category, texts in by_category.items():
        for i, line in enumerate(texts, start=1):
            if str(line).strip():
                place = f"{path}, {category or 'line'} {i}"
                yield PromptRow(place, {"text": str(line).strip(), "category": category})


def cycle_lines(lines: Sequence[Draft], n: int, category: str | None) -> list[Draft]:
    fitting = [d for d in lines if category in (None, d.category)]
    return [fitting[i % len(fitting)] for i in range(n)] if fitting else []
