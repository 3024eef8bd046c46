"""Amazon Bedrock's messages for the supervised fine-tuning of Claude models.

https://platform.claude.com/cookbook/finetuning-finetuning-on-bedrock and the quotas of model
customization.
"""

from typing import ClassVar

from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.feedback.datasets.exporters.base import (
    Line,
    LineExporter,
    Row,
    find_message_fault,
    write_answer,
    write_messages,
)

KEYS = {"system", "messages"}


class Bedrock(LineExporter):
    """`system`, where a row has documents, and `messages`, the user's and the assistant's in
    turns.
    """

    name: ClassVar[str] = "bedrock"
    title: ClassVar[str] = "Bedrock messages"
    types: ClassVar[tuple[DatasetType, ...]] = ("sft", "preference")
    least: ClassVar[int] = 32
    most: ClassVar[int | None] = 10_000

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        *system, prompt = write_messages(row)
        line = {"messages": [prompt, write_answer(row["completion"])]}
        return {"system": system[0]["content"], **line} if system else line

    def find_fault(self, line: Line) -> str | None:
        unknown = sorted(set(line) - KEYS)
        if unknown:
            return f"unknown key {unknown[0]!r}"
        fault = find_message_fault(line.get("messages"), ("user", "assistant"))
        if fault is not None:
            return fault
        roles = [message["role"] for message in line["messages"]]
        if len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
            return "messages must alternate from a user's to an assistant's"
        return None
