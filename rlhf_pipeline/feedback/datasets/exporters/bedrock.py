"""Amazon Bedrock's messages for the supervised fine-tuning of Claude models.

https://platform.claude.com/cookbook/finetuning-finetuning-on-bedrock and the quotas of model
customization.
"""

from typing import ClassVar

from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.feedback.datasets.exporters.base import (
    Line,
    LineExporter,
    Row,
    find_message_fault,
    write_answer,
)

KEYS = {"system", "messages"}


class Bedrock(LineExporter):
    """`system`, where a prompt has such a message, and the user's and the assistant's `messages` in
    turns.
    """

    name: ClassVar[str] = "bedrock"
    title: ClassVar[str] = "Bedrock messages"
    types: ClassVar[tuple[DatasetType, ...]] = ("sft", "preference")
    least: ClassVar[int] = 32
    most: ClassVar[int | None] = 10_000
    most_tokens: ClassVar[int | None] = 32_000

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        chat = build_chat(row["prompt"])
        system = [message["content"] for message in chat if message["role"] == "system"]
        turns = [message for message in chat if message["role"] != "system"]
        line = {"messages": [*turns, write_answer(row["completion"])]}
        return {"system": "\n\n".join(system), **line} if system else line

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
