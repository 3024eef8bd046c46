"""The protocol of an export format, and the base of those with one JSON object a line."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import pandas as pd

from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.frames import DATASET_ROWS, check_frame
from rlhf_pipeline.feedback.datasets.formats.jsonl import encode_line

Row = Mapping[str, Any]
Line = dict[str, Any]
ALL_TYPES: tuple[DatasetType, ...] = ("preference", "sft", "unpaired")
MOST_NAMED = 5  # rows of an error
BYTES_PER_TOKEN = 4  # of English in UTF-8, about; other languages have fewer


class Exporter(Protocol):
    """One format. `types`: of the data sets it can hold; `title` names it on pages."""

    name: ClassVar[str]
    title: ClassVar[str]
    suffix: ClassVar[str]
    types: ClassVar[tuple[DatasetType, ...]]

    def export(self, rows: pd.DataFrame, kind: DatasetType) -> bytes:
        """The file of DATASET_ROWS. Raises DatasetError naming the rows that its reader would
        refuse.
        """


class LineExporter(ABC):
    """One JSON object a row. A subclass builds a line and checks it by its reader's rules."""

    name: ClassVar[str]
    title: ClassVar[str]
    suffix: ClassVar[str] = ".jsonl"
    types: ClassVar[tuple[DatasetType, ...]] = ALL_TYPES
    least: ClassVar[int] = 1  # rows that the reader requires
    most: ClassVar[int | None] = None
    most_tokens: ClassVar[int | None] = None  # of a line
    most_bytes: ClassVar[int | None] = None  # of the file

    @abstractmethod
    def build_line(self, row: Row, kind: DatasetType) -> Line: ...

    @abstractmethod
    def find_fault(self, line: Line) -> str | None:
        """Why the reader would refuse a line; None if it would not."""

    def export(self, rows: pd.DataFrame, kind: DatasetType) -> bytes:
        """See `Exporter.export`."""
        checked = check_frame(rows, DATASET_ROWS)
        if not self.least <= len(checked) <= (self.most or len(checked)):
            limit = f"at least {self.least:,}" if len(checked) < self.least else f"{self.most:,}"
            raise DatasetError(
                f"The data set has {len(checked):,} rows; {self.title} takes {limit}. Change its "
                "filters, or choose another format."
            )
        records = checked.astype(object).where(checked.notna(), None).to_dict("records")
        lines, faults = [], []
        for record in records:
            line = self.build_line(record, kind)
            fault = self.find_fault(line)
            if fault is not None:
                faults.append(f"{record['row_id']}: {fault}")
            lines.append(encode_line(line))
        if faults:
            more = f"; {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
            raise DatasetError(
                f"{self.title} refuses {len(faults):,} of {len(lines):,} rows. "
                f"{'; '.join(faults[:MOST_NAMED])}{more}. Edit or reject these rows, then freeze "
                "again."
            )
        content = "".join(lines).encode()
        if self.most_bytes is not None and len(content) > self.most_bytes:
            raise DatasetError(
                f"The file has {len(content):,} bytes; {self.title} takes {self.most_bytes:,}. "
                "Narrow the data set's filters, or make two of it."
            )
        return content

    def find_warnings(self, content: bytes) -> tuple[str, ...]:
        """Which lines of a file may have more tokens than the reader takes, by an estimate: only
        its own tokenizer counts them.
        """
        if self.most_tokens is None:
            return ()
        most = self.most_tokens * BYTES_PER_TOKEN
        long = [n for n, line in enumerate(content.splitlines(), 1) if len(line) > most]
        if not long:
            return ()
        named = ", ".join(map(str, long[:MOST_NAMED])) + (" …" if len(long) > MOST_NAMED else "")
        return (
            f"{len(long):,} of its lines may be longer than the {self.most_tokens:,} tokens of "
            f"{self.title}, at {BYTES_PER_TOKEN} bytes a token: {named}.",
        )


def write_answer(text: str) -> Line:
    return {"role": "assistant", "content": text}


def find_message_fault(messages: Any, roles: tuple[str, ...]) -> str | None:
    """What is wrong with a list of chat messages of these roles."""
    if not isinstance(messages, list) or not messages:
        return "has no messages"
    for message in messages:
        if message.get("role") not in roles:
            return f"role {message.get('role')!r} is not one of {', '.join(roles)}"
        if not isinstance(message.get("content"), str) or not message["content"].strip():
            return f"the {message['role']} message is blank"
    return None
