"""Reads the rows of CSV, TSV, JSONL, JSON and Parquet files, opened by their suffix.

Memory is bounded by the largest rows, not by the file: Parquet comes in batches of some megabytes,
text line by line. A row that cannot be read has a `fault`; a file that cannot be read raises
DatasetError.
"""

from pathlib import Path

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.csv_rows import CsvFile
from rlhf_pipeline.core.row_files.json_rows import JsonArray, JsonLines
from rlhf_pipeline.core.row_files.parquet_rows import ParquetFile
from rlhf_pipeline.core.row_files.rows import FileRow, RowFile, chunks, translate_read_errors

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".json")
BYTE_ORDER_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
FOREIGN = (
    (b"PK\x03\x04", "a spreadsheet or zip archive"),
    (b"\x1f\x8b", "gzip"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3", "a SQLite database"),
)

__all__ = ["SUFFIXES", "FileRow", "RowFile", "chunks", "open_rows"]


def open_rows(path: Path, *, delimiter: str | None = None) -> RowFile:
    """Open a file of rows by its suffix. Raises DatasetError if it does not exist, is of another
    kind, truncated or empty.

    Rows are read during iteration, which raises DatasetError with the line from which the file
    cannot be read.
    """
    if not path.exists():
        raise DatasetError(f"{path} does not exist. Check the name.")
    if not path.is_file():
        raise DatasetError(f"{path} is not a file. Name one file; import several files one by one.")
    kind = path.suffix.lower()
    if delimiter is not None and kind not in (".csv", ".tsv"):
        raise DatasetError(f"{path}: --delimiter is for .csv and .tsv files. Leave it out.")
    with translate_read_errors(path):
        if path.stat().st_size == 0:
            raise DatasetError(f"{path} is empty: 0 bytes. Write or copy it again.")
        if kind == ".parquet":
            return ParquetFile(path)
        _refuse_foreign(path)
        if kind in (".jsonl", ".ndjson"):
            return JsonLines(path)
        if kind in (".csv", ".tsv"):
            return CsvFile(path, delimiter or ("\t" if kind == ".tsv" else ","))
        if kind == ".json":
            return JsonArray(path)
    kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    raise DatasetError(f"{path}: unknown kind {kind!r}. Give {kinds}.")


def _refuse_foreign(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(16)
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            raise DatasetError(f"{path} is {name}. Save it as UTF-8 (`iconv -f {name} -t UTF-8`).")
    for mark, name in FOREIGN:
        if head.startswith(mark):
            raise DatasetError(
                f"{path} is {name} despite its name. Export it as CSV, JSONL or Parquet with the "
                "matching suffix."
            )
