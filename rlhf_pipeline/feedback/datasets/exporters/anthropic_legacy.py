"""Anthropic's older text completions: a `Human:` and `Assistant:` transcript, and its output."""

from typing import ClassVar

from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.feedback.datasets.exporters.base import Line, LineExporter, Row, write_prompt

HUMAN, ASSISTANT = "Human: ", "\n\nAssistant:"


class AnthropicLegacy(LineExporter):
    """`input` and `output`. Bedrock's fine-tuning takes `bedrock` instead."""

    name: ClassVar[str] = "anthropic"
    title: ClassVar[str] = "Anthropic (legacy)"
    types: ClassVar[tuple[DatasetType, ...]] = ("sft", "preference")

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        return {"input": f"{HUMAN}{write_prompt(row)}{ASSISTANT}", "output": row["completion"]}

    def find_fault(self, line: Line) -> str | None:
        text, output = line.get("input"), line.get("output")
        if not isinstance(text, str) or not (text.startswith(HUMAN) and text.endswith(ASSISTANT)):
            return "input must begin with 'Human: ' and end with 'Assistant:'"
        if not text.removeprefix(HUMAN).removesuffix(ASSISTANT).strip():
            return "the prompt is blank"
        return None if isinstance(output, str) and output.strip() else "output is blank"
