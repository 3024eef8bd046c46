"""OpenAI's fine-tuning files: chat for supervised, preference for direct preference optimization.

https://developers.openai.com/api/docs/guides/direct-preference-optimization. Together and Fireworks
take the same preference lines.
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

MOST_TOKENS = 65_536  # of an example of GPT-4o and GPT-4.1; more are cut off
MOST_BYTES = 512_000_000
ROLES = ("system", "user", "assistant")


class OpenAIChat(LineExporter):
    """`messages` that end with the assistant's; of a preference, the preferred completion."""

    name: ClassVar[str] = "openai"
    title: ClassVar[str] = "OpenAI chat"
    types: ClassVar[tuple[DatasetType, ...]] = ("sft", "preference")
    least: ClassVar[int] = 10
    most_tokens: ClassVar[int | None] = MOST_TOKENS
    most_bytes: ClassVar[int | None] = MOST_BYTES

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        return {"messages": [*build_chat(row["prompt"]), write_answer(row["completion"])]}

    def find_fault(self, line: Line) -> str | None:
        fault = find_message_fault(line.get("messages"), ROLES)
        if fault is None and line["messages"][-1]["role"] != "assistant":
            return "the last message is not the assistant's"
        return fault


class OpenAIPreference(LineExporter):
    """`input`, `preferred_output` and `non_preferred_output`, of one assistant message each."""

    name: ClassVar[str] = "openai_preference"
    title: ClassVar[str] = "OpenAI preference"
    types: ClassVar[tuple[DatasetType, ...]] = ("preference",)
    least: ClassVar[int] = 10
    most_tokens: ClassVar[int | None] = MOST_TOKENS
    most_bytes: ClassVar[int | None] = MOST_BYTES

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        return {
            "input": {
                "messages": build_chat(row["prompt"]),
                "tools": [],
                "parallel_tool_calls": True,
            },
            "preferred_output": [write_answer(row["completion"])],
            "non_preferred_output": [write_answer(row["rejected"])],
        }

    def find_fault(self, line: Line) -> str | None:
        messages = line.get("input", {}).get("messages")
        fault = find_message_fault(messages, ROLES)
        if fault is not None:
            return f"input: {fault}"
        outputs = [line.get("preferred_output"), line.get("non_preferred_output")]
        for name, output in zip(("preferred_output", "non_preferred_output"), outputs, strict=True):
            fault = find_message_fault(output, ("assistant",))
            if fault is not None:
                return f"{name}: {fault}"
        return "both outputs are equal" if outputs[0] == outputs[1] else None
