"""Imports the rows of a file as prompts of the JSONL file that the `dataset` source reads."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.files import open_atomically
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.row_files import FileRow, RowFile, chunks
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.cells import RowRejected, parse_text
from rlhf_pipeline.feedback.datasets.mapping import bind
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.generate.prompts import prompt_id
from rlhf_pipeline.generate.prompts.dataset import parse_draft
from rlhf_pipeline.generate.prompts.rows import replace_missing

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

    def run(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
    ) -> list[str]:
        """Returns the columns that were not bound to a name."""
        binding = bind(mapping.PROMPTS, names, rows.columns, what=what, required=REQUIRED)
        stored_ids, seen_ids = _load_known_ids(self.target), set[str]()
        with open_atomically(self.target) as file:
            if self.target.exists():
                with self.target.open("rb") as earlier:
                    shutil.copyfileobj(earlier, file)
            for batch in chunks(rows):
                for row in batch:
                    self._take(row, binding, file, stored_ids, seen_ids)
                progress(rows.position, rows.size, "prompts")
        return binding.unused

    def _take(
        self,
        row: FileRow,
        binding: mapping.Binding,
        file: IO[bytes],
        stored_ids: set[str],
        seen_ids: set[str],
    ) -> None:
        try:
            if row.fault is not None:
                raise RowRejected(row.fault)
            prompt = self._prompt(binding.select_cells(row.cells))
        except RowRejected as cause:
            self.rejects.add(row.line, str(cause), row.cells)
            self.counts = self.counts.plus(rejected=1)
            return
        name = prompt_id(prompt["text"], prompt["reference"])
        is_first = name not in seen_ids
        seen_ids.add(name)
        if not is_first:
            self.counts = self.counts.plus(merged=1)
        elif name in stored_ids:
            self.counts = self.counts.plus(stored_before=1)
        else:
            file.write(f"{json.dumps(prompt, ensure_ascii=False)}\n".encode())
            self.counts = self.counts.plus(imported=1)

    def _prompt(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the target file."""
        cell = cells["text"]
        text = cell if isinstance(cell, list | dict) else clean(parse_text(cell, "text"))
        draft = parse_draft(replace_missing(cells) | {"text": text}, self.domain or "")
        if isinstance(draft, str):
            raise RowRejected(draft)
        return {
            "text": draft.text,
            "category": draft.category,
            "difficulty": draft.difficulty,
            "reference": draft.reference,
            "variables": {
                "n_whitespace_tokens": len(render_transcript(draft.text).split()),
                **draft.variables,
            },
        }


def clean(text: str) -> str:
    r"""Strip the text and normalise line ends to \n, so that prompts that differ only in these are
    equal.

    >>> clean("  Why?\r\nSay it. ")
    'Why?\nSay it.'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _load_known_ids(target: Path) -> set[str]:
    """Ids of the prompts of earlier imports."""
    ids: set[str] = set()
    if target.exists():
        try:
            with target.open(encoding="utf-8") as file:
                for line in file:
                    row = json.loads(line)
                    ids.add(prompt_id(row["text"], row.get("reference")))
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise DatasetError(
                f"{target}, the file of imported prompts, cannot be read: {cause}. Restore it, or "
                "move it away to start over."
            ) from cause
    return ids
