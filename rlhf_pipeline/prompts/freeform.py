"""Prompts from free-form instructions, by a text generator or as they stand. Knows no policy and no template."""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.prompts.base import Draft, PromptParams, cells, check_size, choose, to_frame
from rlhf_pipeline.prompts.dataset import read_rows
from rlhf_pipeline.protocols import TextGenerator
from rlhf_pipeline.records import Category, Difficulty

INSTRUCTIONS = Path(__file__).with_name("instructions.yaml")
MAX_ROUNDS = 5


class FreeformGenerator:
    """Instruction lines by category: handed to a text generator, or, without one, asked as they stand.

    The lines are the shipped ones or those of a file: YAML of `category: [lines]`, plain text with a line each, or any
    file the dataset source reads.
    """

    name = "freeform"

    def __init__(self, source_file: Path | None = None, text_generator: TextGenerator | None = None) -> None:
        self._path = INSTRUCTIONS if source_file is None else source_file
        self._generator = text_generator

    def generate(self, params: PromptParams, *, day: str, seed: int, exclude: frozenset[str]) -> pd.DataFrame:
        """See `PromptGenerator`; a text generator is asked again, up to five times, while its texts repeat."""
        lines = load_instructions(self._path)
        shuffled = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))]
        if self._generator is not None:
            shuffled = self._written(self._generator, shuffled, params, seed, exclude)
        return to_frame(choose(shuffled, params, exclude, what=f"{self._path}"), source=self.name, day=day, seed=seed)

    def _written(
        self, generator: TextGenerator, lines: list[Draft], params: PromptParams, seed: int, exclude: frozenset[str]
    ) -> list[Draft]:
        written: dict[str, Draft] = {}
        for attempt in range(MAX_ROUNDS):
            wanted = [line for n, category, level in cells(params) for line in _cycled(lines, n, category, level)]
            asked = [f"Write one prompt, as one line, that asks for this: {line.text}" for line in wanted]
            for line, text in zip(wanted, generator.generate_texts(asked, seed=seed + attempt), strict=True):
                draft = Draft(" ".join(text.split()), line.category, line.difficulty, variables={"instruction": line.text})
                if draft.text and draft.prompt_id not in exclude:
                    check_size(draft.text, f"text written for the instruction {line.text!r}")
                    written.setdefault(draft.prompt_id, draft)
            if _suffices(list(written.values()), params):
                break
        return list(written.values())


def load_instructions(path: Path) -> list[Draft]:
    """Instruction lines of a file. Raises PromptError naming file and line for what cannot be read."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path)
    if path.suffix.lower() == ".txt":
        try:
            lines = [line.strip() for line in path.read_bytes().decode("utf-8").split("\n")]
        except (OSError, UnicodeDecodeError) as cause:
            raise PromptError(f"Instructions {path} cannot be read ({cause}). Give a UTF-8 text file.") from cause
        return [_line(text, Category.INSTRUCTION, f"{path}, line {i}") for i, text in enumerate(lines, start=1) if text]
    rows = list(read_rows(path))
    return [_line(str(row.get("text", "")), str(row.get("category", Category.INSTRUCTION)), where) for where, row in rows]


def _from_yaml(path: Path) -> list[Draft]:
    try:
        by_category = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise PromptError(f"Instructions {path} cannot be read ({cause}). Give UTF-8 YAML of `category: [lines]`.") from cause
    if not isinstance(by_category, dict):
        raise PromptError(f"Instructions {path} must be `category: [lines]`.")
    return [_line(str(t), str(c), f"{path}, {c} {i}") for c, texts in by_category.items() for i, t in enumerate(texts, start=1)]


def _line(text: str, category: str, where: str) -> Draft:
    if category not in tuple(Category):
        raise PromptError(f"{where}: unknown category {category!r}. Known: {', '.join(Category)}.")
    check_size(text, where)
    return Draft(text, category, Difficulty.MEDIUM)


def _cycled(lines: list[Draft], n: int, category: str | None, level: str | None) -> list[Draft]:
    fitting = [d for d in lines if category in (None, d.category) and level in (None, d.difficulty)]
    return [fitting[i % len(fitting)] for i in range(n)] if fitting else []


def _suffices(drafts: list[Draft], params: PromptParams) -> bool:
    return all(
        sum(category in (None, d.category) and level in (None, d.difficulty) for d in drafts) >= n for n, category, level in cells(params)
    )
