"""The rows themselves with all their columns, for analysis and for reading them back."""

import io
from typing import ClassVar

import pandas as pd

from rlhf_pipeline.core.curation import DatasetType
from rlhf_pipeline.core.frames import DATASET_ROWS
from rlhf_pipeline.feedback.datasets.exporters.base import ALL_TYPES
from rlhf_pipeline.feedback.datasets.formats.base import Format
from rlhf_pipeline.feedback.datasets.formats.csv import Csv
from rlhf_pipeline.feedback.datasets.formats.jsonl import Jsonl
from rlhf_pipeline.feedback.datasets.formats.parquet import Parquet


class TableExporter:
    """DATASET_ROWS in a file format of `feedback.datasets.formats`, which checks each column."""

    name: ClassVar[str]
    title: ClassVar[str]
    suffix: ClassVar[str]
    types: ClassVar[tuple[DatasetType, ...]] = ALL_TYPES
    format: ClassVar[type[Format]]

    def export(self, rows: pd.DataFrame, kind: DatasetType) -> bytes:
        """See `Exporter.export`. Raises FrameError."""
        file = io.BytesIO()
        self.format().write([rows], DATASET_ROWS, file)
        return file.getvalue()


class JsonlRows(TableExporter):
    name: ClassVar[str] = "jsonl"
    title: ClassVar[str] = "JSON Lines, all columns"
    suffix: ClassVar[str] = ".jsonl"
    format: ClassVar[type[Format]] = Jsonl


class ParquetRows(TableExporter):
    name: ClassVar[str] = "parquet"
    title: ClassVar[str] = "Parquet, all columns"
    suffix: ClassVar[str] = ".parquet"
    format: ClassVar[type[Format]] = Parquet


class CsvRows(TableExporter):
    name: ClassVar[str] = "csv"
    title: ClassVar[str] = "CSV, all columns"
    suffix: ClassVar[str] = ".csv"
    format: ClassVar[type[Format]] = Csv
