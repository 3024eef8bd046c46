"""Reads the rows of CSV, TSV, JSONL, JSON and Parquet files, opened by their suffix; but Parquet
also with `.gz`.

Memory is bounded by the largest rows, not by the file: Parquet comes in batches of some megabytes,
text line by line. A row that cannot be read has a `fault`; a file that cannot be read raises
DatasetError.
"""

from pathlib import Path

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.csv_rows import UTF_16, CsvFile
from rlhf_pipeline.core.row_files.json_rows import JsonDocument, JsonLines, is_document
from rlhf_pipeline.core.row_files.parquet_rows import ParquetFile
from rlhf_pipeline.core.row_files.rows import (
    GZIP,
    FileRow,
    RowFile,
    chunks,
    open_bytes,
    translate_read_errors,
)

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".json")
FOREIGN = (
    (b"PK\x03\x04", "a spreadsheet or zip archive"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard"),
    (b"\x1f\x8b", "gzip"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3", "a SQLite database"),
)

__all__ = ["SUFFIXES", "FileRow", "RowFile", "chunks", "open_rows"]


def open_rows(
    path: Path, *, delimiter: str | None = None, encoding: str | None = "utf-8"
) -> RowFile:
    """Open a file of rows by its suffix. The delimiter of a CSV file is that of its header unless
    it is given; `encoding` None takes Windows-1252 where a CSV file cannot be UTF-8.

    Raises DatasetError if the file does not exist, is of another kind, truncated or empty. Rows are
    read during iteration, which raises DatasetError with the line from which the file cannot be
    read.
    """
    if not path.exists():
        raise DatasetError(f"{path} does not exist. Check the name.")
    if not path.is_file():
        raise DatasetError(f"{path} is not a file. Name its files, such as {path}/*.parquet.")
    is_gzip = path.suffix.lower() == GZIP
    kind = Path(path.stem if is_gzip else path).suffix.lower()
    if delimiter is not None and kind not in (".csv", ".tsv"):
        raise DatasetError(f"{path}: --delimiter is for .csv and .tsv files. Leave it out.")
    with translate_read_errors(path):
        if path.stat().st_size == 0:
            raise DatasetError(f"{path} is empty: 0 bytes. Write or copy it again.")
        if kind == ".parquet" and not is_gzip:
            return ParquetFile(path)
        _refuse_foreign(path)
        if kind in (".csv", ".tsv"):
            return CsvFile(path, delimiter or ("\t" if kind == ".tsv" else None), encoding)
        if kind in (".jsonl", ".ndjson", ".json"):
            return JsonDocument(path) if is_document(path) else JsonLines(path)
    kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    raise DatasetError(f"{path}: unknown kind {kind!r}. Give {kinds}.")


def _refuse_foreign(path: Path) -> None:
    with open_bytes(path) as file:
        head = file.read(16)
    for mark, name in FOREIGN:
        if head.startswith(mark):
            despite = " despite its name" if path.suffix.lower() in SUFFIXES else ""
            cure = "Unpack it, or export it as CSV or JSONL, with the matching suffix"
            cure = "End its name with .gz" if name == "gzip" else cure
            raise DatasetError(f"{path} is {name}{despite}. {cure}.")
    # no JSON has NUL characters: without a mark, UTF-16 has one beside each letter
    is_csv = path.name.lower().removesuffix(GZIP).endswith((".csv", ".tsv"))
    if not is_csv and (head.startswith(UTF_16) or 0 in head[:2]):
        order = "" if head.startswith(UTF_16) else "BE" if head[0] == 0 else "LE"
        raise DatasetError(
            f"{path} is UTF-16. Save it as UTF-8 (`iconv -f UTF-16{order} -t UTF-8`)."
        )
