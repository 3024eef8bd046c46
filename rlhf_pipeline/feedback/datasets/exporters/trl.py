"""TRL's data set types: preference, prompt-completion and unpaired, as texts or as messages.

https://huggingface.co/docs/trl/dataset_formats. Every column of a file has one type, so that
`datasets.load_dataset("json", …)` reads it.
"""

from typing import ClassVar

from rlhf_pipeline.core.conversations import build_chat, render_transcript
from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.feedback.datasets.exporters.base import (
    Line,
    LineExporter,
    Row,
    write_answer,
)


class Trl(LineExporter):
    """Explicit prompts: `prompt, chosen, rejected`, `prompt, completion`, and with `label`."""

    name: ClassVar[str] = "trl"
    title: ClassVar[str] = "TRL"

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        prompt = {"prompt": render_transcript(row["prompt"])}
        if kind == "preference":
            return prompt | {"chosen": row["completion"], "rejected": row["rejected"]}
        label = {"label": bool(row["label"])} if kind == "unpaired" else {}
        return prompt | {"completion": row["completion"]} | label

    def find_fault(self, line: Line) -> str | None:
        blank = [name for name, value in line.items() if value is None or not str(value).strip()]
        if blank:
            return f"{blank[0]} is blank"
        return "chosen and rejected are equal" if _has_equal_sides(line) else None


class TrlConversational(Trl):
    """The same columns, each a list of messages."""

    name: ClassVar[str] = "trl_conversational"
    title: ClassVar[str] = "TRL, conversational"

    def build_line(self, row: Row, kind: DatasetType) -> Line:
        line = super().build_line(row, kind)
        answers = {
            name: [write_answer(text)]
            for name, text in line.items()
            if name not in ("prompt", "label")
        }
        return line | {"prompt": build_chat(row["prompt"])} | answers

    def find_fault(self, line: Line) -> str | None:
        texts = {
            name: value if name == "label" else value[-1]["content"] for name, value in line.items()
        }
        return super().find_fault(texts)


def _has_equal_sides(line: Line) -> bool:
    return "rejected" in line and line["chosen"].strip() == line["rejected"].strip()
