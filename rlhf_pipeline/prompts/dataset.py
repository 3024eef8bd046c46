"""Prompts from a file, and the JSONL form of PROMPTS. Knows files; knows no template and no policy."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.errors import FrameError, PromptError
from rlhf_pipeline.files import write_whole
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.prompts.base import Draft, PromptParams, check_size, choose, to_frame
from rlhf_pipeline.protocols import TextGenerator
from rlhf_pipeline.records import Category, Difficulty

TEXT_COLUMNS = ("text", "prompt", "instruction")


class DatasetGenerator:
    """Draws from a JSONL, CSV or Parquet file with a text column and, where it has them, category, difficulty, reference."""

    name = "dataset"

    def __init__(self, source_file: Path | None = None, text_generator: TextGenerator | None = None) -> None:
        if source_file is None:
            raise PromptError("The dataset source needs a file. Set RLHF_PROMPTS_FILE to a JSONL, CSV or Parquet file of prompts.")
        self._path = source_file

    def generate(self, params: PromptParams, *, day: str, seed: int, exclude: frozenset[str]) -> pd.DataFrame:
        """See `PromptGenerator`; rows are drawn without replacement in seeded order, duplicates of the file once."""
        drafts = [_draft(row, where) for where, row in read_rows(self._path)]
        shuffled = [drafts[i] for i in np.random.default_rng(seed).permutation(len(drafts))]
        return to_frame(choose(shuffled, params, exclude, what=f"{self._path}"), source=self.name, day=day, seed=seed)


def read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rows of a JSONL, CSV or Parquet file, each with the words that name it in an error.

    Raises PromptError for a file that does not exist or is of another kind, bytes that are not UTF-8 (naming the
    line), a line that is no JSON object.
    """
    if not path.is_file():
        raise PromptError(f"Prompts file {path} does not exist. Check RLHF_PROMPTS_FILE.")
    kind = path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        yield from _json_rows(path)
    elif kind == ".csv":
        yield from _csv_rows(path)
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    else:
        raise PromptError(f"Prompts file {path}: unknown kind {kind!r}. Give .jsonl, .csv or .parquet.")


def write_jsonl(frame: pd.DataFrame, path: Path) -> int:
    """PROMPTS as one JSON object a line; returns the number of lines. Never half a file; raises ArtefactError where the disk refuses."""
    checked = check_frame(frame, PROMPTS)
    lines = [json.dumps(_plain(row), ensure_ascii=False) for row in checked.to_dict("records")]
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def read_jsonl(path: Path) -> pd.DataFrame:
    """PROMPTS from a file of `write_jsonl`, unchanged. Raises PromptError naming the line or column."""
    rows = [dict(row) for _, row in read_rows(path)]
    if not rows:
        return PROMPTS.empty()
    try:
        return check_frame(pd.DataFrame(rows), PROMPTS)
    except FrameError as cause:
        raise PromptError(f"{path} holds no exported prompts: {cause}") from cause


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): None if pd.isna(value) else value for key, value in row.items()}


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as cause:
                raise PromptError(
                    f"{path}, line {number}: not UTF-8 (byte {cause.start + 1}: {cause.reason}). Save the file as UTF-8."
                ) from cause


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in _text_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as cause:
            raise PromptError(f"{path}, line {number}: no JSON ({cause}). Write one JSON object a line.") from cause
        if not isinstance(row, dict):
            raise PromptError(f"{path}, line {number}: a {type(row).__name__}, not an object. Write one JSON object a line.")
        yield f"{path}, line {number}", row


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(100_000_000)  # so that an overlong prompt is refused by name, not by the csv module
    reader = csv.DictReader(io.StringIO("".join(line for _, line in _text_lines(path)), newline=""))
    for row in reader:
        yield f"{path}, line {reader.line_num}", {key: value for key, value in row.items() if value not in ("", None)}


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = pd.read_parquet(path).to_dict("records")
    except (OSError, ValueError) as cause:
        raise PromptError(f"{path} is no readable Parquet file ({cause}). Write it again.") from cause
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", _plain(row)


def _draft(row: Mapping[str, Any], where: str) -> Draft:
    text = next((row[c] for c in TEXT_COLUMNS if isinstance(row.get(c), str)), None)
    if text is None:
        raise PromptError(f"{where}: no text. Give a column {' or '.join(TEXT_COLUMNS)}.")
    check_size(text, where)
    category = row.get("category") or Category.INSTRUCTION
    difficulty = row.get("difficulty") or Difficulty.MEDIUM
    if category not in tuple(Category) or difficulty not in tuple(Difficulty):
        raise PromptError(
            f"{where}: category {category!r}, difficulty {difficulty!r}. Categories: {', '.join(Category)}; difficulties: {', '.join(Difficulty)}."
        )
    reference = row.get("reference")
    variables = row.get("variables")
    return Draft(
        text,
        str(category),
        str(difficulty),
        None if reference in (None, "") else str(reference),
        row.get("template_id"),
        variables if isinstance(variables, Mapping) else {},
    )
