"""File formats of exports, one module per format."""

from pathlib import Path

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.feedback.datasets.formats.argilla import Argilla
from rlhf_pipeline.feedback.datasets.formats.base import Format
from rlhf_pipeline.feedback.datasets.formats.csv import Csv
from rlhf_pipeline.feedback.datasets.formats.jsonl import Jsonl
from rlhf_pipeline.feedback.datasets.formats.parquet import Parquet

FORMATS = Members[type[Format]](
    "datasets.formats",
    {
        "jsonl": Jsonl,
        "csv": Csv,
        "parquet": Parquet,
        "argilla": Argilla,
    },
)


def format_for(path: Path | None = None, name: str | None = None) -> Format:
    """The format called `name`, else that of the path's suffix, else JSONL. Raises
    ConfigurationError for an unknown one.
    """
    if name is not None:
        return FORMATS[name]()
    if path is None or not path.suffix:
        return Jsonl()
    for member in FORMATS.values():
        if path.name.lower().endswith(member.suffix):
            return member()
    formats = ", ".join(f"{member.suffix} ({name})" for name, member in FORMATS.items())
    raise ConfigurationError(
        f"{path}: unknown suffix {path.suffix!r}. Known: {formats}. Rename the file, or set "
        "--format."
    )


__all__ = ["FORMATS", "Format", "format_for"]
