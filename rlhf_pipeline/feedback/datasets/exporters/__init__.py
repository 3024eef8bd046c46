"""Formats of exported data sets for trainers and providers, one module a family."""

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.feedback.datasets.exporters.anthropic_legacy import AnthropicLegacy
from rlhf_pipeline.feedback.datasets.exporters.base import Exporter
from rlhf_pipeline.feedback.datasets.exporters.bedrock import Bedrock
from rlhf_pipeline.feedback.datasets.exporters.files import write_export
from rlhf_pipeline.feedback.datasets.exporters.openai import OpenAIChat, OpenAIPreference
from rlhf_pipeline.feedback.datasets.exporters.tables import CsvRows, JsonlRows, ParquetRows
from rlhf_pipeline.feedback.datasets.exporters.trl import Trl, TrlConversational

EXPORTERS = Members[type[Exporter]](
    "datasets.exporters",
    {
        "trl": Trl,
        "trl_conversational": TrlConversational,
        "openai": OpenAIChat,
        "openai_preference": OpenAIPreference,
        "bedrock": Bedrock,
        "anthropic": AnthropicLegacy,
        "jsonl": JsonlRows,
        "parquet": ParquetRows,
        "csv": CsvRows,
    },
)

__all__ = ["EXPORTERS", "Exporter", "write_export"]
