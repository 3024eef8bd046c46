"""Anthropic's older text completions: a `Human:` and `Assistant:` transcript, and its output."""

from typing import ClassVar

from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.feedback.datasets.exporters.base import Line, LineExporter, Row

HUMAN, ASSISTANT = "Human: ", "\n\nAssistant:"
SPEAKERS = {"system": "", "user": HUMAN, "assistant": "Assistant: "}


class AnthropicLegacy(LineExporter):
    """`input` and `output`. Bedrock's fine-tuning takes `bedrock` instead."""

    name: ClassVar[str] = "anthropic"
    title: ClassVar[str] = "Anthropic (legacy)"
    types: ClassVar[tuple[DatasetType, ...]] = ("sft", "preference")

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        turns = [
            f"{SPEAKERS.get(message['role'], HUMAN)}{message['content']}"
            for message in build_chat(row["prompt"])
        ]
        return {"input": "\n\n".join(turns) + ASSISTANT, "output": row["completion"]}

    def find_fault(self, line: Line) -> str | None:
        text, output = line.get("input"), line.get("output")
        if not isinstance(text, str) or HUMAN not in text or not text.endswith(ASSISTANT):
            return "input must hold 'Human: ' and end with 'Assistant:'"
        if not text.rpartition(HUMAN)[2].removesuffix(ASSISTANT).strip():
            return "the last message is blank"
        return None if isinstance(output, str) and output.strip() else "output is blank"
