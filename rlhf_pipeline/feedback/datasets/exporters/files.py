"""Writes an export and its manifest to a folder or an fsspec URL."""

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.core.curation import DatasetExport, DatasetType, DatasetVersion
from rlhf_pipeline.core.errors import ArtefactError, DatasetError
from rlhf_pipeline.core.object_stores import get, open_path, put
from rlhf_pipeline.feedback.datasets.exporters.base import Exporter, LineExporter


def encode_export(exporter: Exporter, rows: pd.DataFrame, kind: DatasetType) -> bytes:
    """The file of DATASET_ROWS of a data set of type `kind`. Raises DatasetError as `export`, and
    for a type that the format cannot hold.
    """
    if kind not in exporter.types:
        raise DatasetError(
            f"{exporter.title} holds data sets of type {' or '.join(exporter.types)}, not {kind}. "
            "Choose another format."
        )
    return exporter.export(rows, kind)


def name_export(name: str, version: int, exporter: Exporter) -> str:
    """The name of the file of a version.

    >>> from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS
    >>> name_export("Support Q4", 2, EXPORTERS["trl"]())
    'support-q4-2.trl.jsonl'
    """
    words = "".join(c if c.isalnum() else " " for c in name.casefold()).split()
    return f"{'-'.join(words) or 'dataset'}-{version}.{exporter.name}{exporter.suffix}"


def write_export(
    folder: str | Path,
    name: str,
    version: DatasetVersion,
    kind: DatasetType,
    rows: pd.DataFrame,
    exporter: Exporter,
    exported_at: datetime,
) -> DatasetExport:
    """Write a version of the data set called `name` into `folder`, and beside it a manifest that
    names its version, content hash, query, quality and SHA-256.

    Raises DatasetError as `encode_export`, where the file holds another export, of a data set with
    a like name, and where the folder cannot be read or written; ConfigurationError for a URL that
    cannot be used.
    """
    content = encode_export(exporter, rows, kind)
    path = open_path(f"{folder}/{name_export(name, version.version, exporter)}")
    export = DatasetExport(
        version=version.version,
        format=exporter.name,
        url=str(path),
        n_rows=len(rows),
        sha256=hashlib.sha256(content).hexdigest(),
        exported_at=exported_at,
        warnings=exporter.find_warnings(content) if isinstance(exporter, LineExporter) else (),
    )
    manifest: dict[str, Any] = {
        "dataset": name,
        "type": kind,
        "export": export.model_dump(mode="json"),
        "version": version.model_dump(mode="json"),
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    try:
        if get(path) not in (None, content):
            raise DatasetError(
                f"{path} holds another export, of a data set with a like name. Export into another "
                "folder, or move that file."
            )
        put(path, content)
        put(path.with_name(f"{path.name}.manifest.json"), text.encode())
    except ArtefactError as cause:
        raise DatasetError(str(cause)) from cause
    return export
