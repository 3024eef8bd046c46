"""Reads the rows of Parquet files in batches of a few megabytes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.parquet import READ_OPTIONS
from rlhf_pipeline.core.row_files.rows import BATCH_BYTES, BATCH_ROWS, MEGABYTE, FileRow


class ParquetFile:
    is_csv = False

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        self.notes: list[str] = []
        try:
            # Buffered, so that a row group of a million rows is not held at once.
            self._file = pq.ParquetFile(
                path, buffer_size=MEGABYTE, pre_buffer=False, **READ_OPTIONS
            )
        except (pa.ArrowException, OSError) as cause:
            if isinstance(cause, OSError) and cause.errno:
                raise  # a disk error; Arrow's errors for damaged footers have no errno
            raise DatasetError(
                f"{path} is truncated or not a Parquet file. Copy it again. ({cause})"
            ) from cause
        schema = self._file.schema_arrow
        names = _find_duplicates([schema.field(i) for i in range(len(schema.names))], "")
        twice = sorted(set(names))
        if twice:
            raise DatasetError(
                f"{path}: columns {twice} come twice in the schema. Rename one of them."
            )
        self.columns: list[str] = list(schema.names)
        self.size: int = self._file.metadata.num_rows
        self._n_read = 0

    @property
    def position(self) -> int:
        return self._n_read

    def __iter__(self) -> Iterator[FileRow]:
        import pyarrow as pa

        self._n_read = 0
        groups = [
            self._file.metadata.row_group(i) for i in range(self._file.metadata.num_row_groups)
        ]
        row_bytes = max(
            (group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1
        )
        batch_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))
        try:
            for batch in self._file.iter_batches(batch_size=batch_rows, use_threads=False):
                for cells in _truncate_to_microseconds(batch).to_pylist():
                    self._n_read += 1
                    yield FileRow(self._n_read, cells)
            if self._n_read < self.size:  # damaged headers of pages may hide their rows
                raise pa.ArrowInvalid("the other rows are missing")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
            raise DatasetError(
                f"{self._path} is damaged after row {self._n_read:,} of {self.size:,} ({cause}). "
                "Copy or write it again."
            ) from cause
        except (OverflowError, LookupError) as cause:
            raise DatasetError(
                f"{self._path} holds a date or time zone that cannot be read, after row "
                f"{self._n_read:,} of {self.size:,} ({cause}). Write that column as text."
            ) from cause


def _find_duplicates(fields: Sequence[Any], path: str) -> Iterator[str]:
    """Names that come twice in an Arrow schema, nested ones with their path."""
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            yield f"{path}{field.name}"
        kind = field.type
        yield from _find_duplicates(
            [kind.field(i) for i in range(kind.num_fields)], f"{path}{field.name}."
        )


def _truncate_to_microseconds(batch: Any) -> Any:
    """Truncate timestamps to microseconds, the resolution of datetime."""
    import pyarrow as pa

    fields = [
        pa.field(f.name, pa.timestamp("us", tz=f.type.tz))
        if pa.types.is_timestamp(f.type) and f.type.unit == "ns"
        else f
        for f in batch.schema
    ]
    columns = [
        # a cast to its own type breaks Arrow's lists of objects with a key that is always null
        column if column.type == f.type else column.cast(f.type, safe=False)
        for column, f in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
