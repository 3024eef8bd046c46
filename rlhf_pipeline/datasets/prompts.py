"""Imports the rows of a file as prompts of the JSONL file that the `dataset` source reads."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlhf_pipeline.datasets import mapping
from rlhf_pipeline.datasets.cells import (
    RowRejected,
    is_missing,
    parse_enum,
    parse_optional_text,
    parse_text,
)
from rlhf_pipeline.datasets.mapping import bind
from rlhf_pipeline.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.errors import DatasetError, PromptError
from rlhf_pipeline.files import translate_write_errors
from rlhf_pipeline.prompts import prompt_id
from rlhf_pipeline.prompts.base import check_size
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Category, Difficulty, parse_category
from rlhf_pipeline.row_files import FileRow, RowFile, chunks

REQUIRED = [("text",)]


@dataclass
class PromptImport:
    """Adds one file's prompts to `target`, which keeps earlier imports and is replaced
    atomically.
    """

    target: Path
    rejects: Rejects
    domain: str | None = None
    counts: ImportCounts = field(default_factory=ImportCounts)
    unused: list[str] = field(
        default_factory=list
    )  # columns of the file that were not bound to a name

    def run(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
    ) -> ImportCounts:
        binding = bind(mapping.PROMPTS, names, rows.columns, what=what, required=REQUIRED)
        self.unused = binding.unused
        known, seen = _load_known_ids(self.target), set[str]()
        unfinished = self.target.with_name(f".{self.target.name}.{uuid.uuid4().hex}.tmp")
        try:
            with translate_write_errors(self.target):
                self.target.parent.mkdir(parents=True, exist_ok=True)
                if self.target.exists():
                    shutil.copyfile(self.target, unfinished)
                with unfinished.open("a", encoding="utf-8") as file:
                    for batch in chunks(rows):
                        for row in batch:
                            self._take(row, binding, file, known, seen)
                        progress(rows.position, rows.size, "prompts")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(unfinished, self.target)
        finally:
            unfinished.unlink(missing_ok=True)
        return self.counts

    def _take(
        self,
        row: FileRow,
        binding: mapping.Binding,
        file: IO[str],
        known: set[str],
        seen: set[str],
    ) -> None:
        try:
            if row.fault is not None:
                raise RowRejected(row.fault)
            prompt = self._prompt(binding.select_cells(row.cells), row.line)
        except RowRejected as cause:
            self.rejects.add(row.line, str(cause), row.cells)
            self.counts = self.counts.plus(rejected=1)
            return
        name = prompt_id(prompt["text"], prompt["reference"])
        is_first = name not in seen
        seen.add(name)
        if not is_first:
            self.counts = self.counts.plus(merged=1)
        elif name in known:
            self.counts = self.counts.plus(known=1)
        else:
            json.dump(prompt, file, ensure_ascii=False)
            file.write("\n")
            self.counts = self.counts.plus(imported=1)

    def _prompt(self, cells: Mapping[str, Any], line: int) -> dict[str, Any]:
        """A row of the target file."""
        said = clean(parse_text(cells["text"], "text"))
        try:
            check_size(said, f"line {line}")
        except PromptError as cause:
            raise RowRejected(str(cause).partition(": ")[2].rstrip(".")) from cause
        domain = parse_optional_text(cells.get("domain"), "domain") or self.domain
        reference = parse_optional_text(cells.get("reference"), "reference")
        difficulty = cells.get("difficulty")
        variables: dict[str, Any] = {"n_whitespace_tokens": len(said.split())}
        return {
            "text": said,
            "category": _category(cells.get("category"), domain),
            "difficulty": Difficulty.MEDIUM.value
            if is_missing(difficulty)
            else parse_enum(difficulty, "difficulty", Difficulty).value,
            "reference": reference,
            "variables": variables | ({"domain": domain} if domain else {}),
        }


def clean(said: str) -> str:
    r"""Strip the text and normalise line ends to \n, so that prompts that differ only in these are
    equal.

    >>> clean("  Why?\r\nSay it. ")
    'Why?\nSay it.'
    """
    return said.replace("\r\n", "\n").replace("\r", "\n").strip()


def _category(value: Any, domain: str | None) -> str:
    """The given category; else the domain, if it is a category; else `instruction`."""
    if not is_missing(value):
        try:
            return parse_category(value)
        except ValueError as cause:
            raise RowRejected(str(cause)) from None
    said = (domain or "").strip().lower()
    return said if said in tuple(Category) else Category.INSTRUCTION.value


def _load_known_ids(target: Path) -> set[str]:
    """Ids of the prompts of earlier imports."""
    known: set[str] = set()
    if target.exists():
        try:
            with target.open(encoding="utf-8") as file:
                for line in file:
                    row = json.loads(line)
                    known.add(prompt_id(row["text"], row.get("reference")))
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise DatasetError(
                f"{target}, the file of imported prompts, cannot be read: {cause}. Restore it, or "
                "move it away to start over."
            ) from cause
    return known
