"""Reads the rows of CSV and TSV files record by record."""

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.rows import (
    MAX_LINE,
    MEGABYTE,
    FileRow,
    count_bytes,
    open_bytes,
    translate_read_errors,
)

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WINDOWS = "cp1252"  # what Excel writes as "CSV" in western Europe
NAMES = {WINDOWS: "Windows-1252"}
DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r"sep=(.)\s*")  # Excel's own first line


class CsvFile:
    """A CSV file quoted as in RFC 4180. Bytes that are not of its encoding become surrogates, so
    that only their row is rejected.
    """

    is_csv = True

    def __init__(self, path: Path, delimiter: str | None, encoding: str | None = "utf-8") -> None:
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise DatasetError(
                f"--delimiter {delimiter!r}: give one character, such as ';' (for a tab name the "
                "file .tsv)."
            )
        self._path = path
        self.size = count_bytes(path)
        self.notes: list[str] = []
        self._position = 0
        self._encoding = self._detect_encoding() if encoding is None else encoding
        with self._open() as lines:
            first = lines.readline(MAX_LINE)
        sep = SEP_LINE.fullmatch(first)
        self._has_sep = sep is not None
        self._delimiter = delimiter or (sep[1] if sep else _detect_delimiter(first))
        if self._delimiter != "," and delimiter is None:
            self.notes.append(f"cells separated by {self._delimiter!r}")
        line, self.columns, fault = next(self._records(), (1, [], "no header"))
        fault = fault or find_undecoded(self.columns)
        if fault is not None:
            raise DatasetError(f"{path}, line {line}: {fault}. The first line names the columns.")
        # as spreadsheets leave them behind their last column
        self.columns = [
            name if name.strip() else f"column {i}" for i, name in enumerate(self.columns, start=1)
        ]
        names = [name.strip() for name in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DatasetError(
                f"{path}, line {line}: columns {twice} come twice in the header. Rename one of "
                "them."
            )

    @property
    def position(self) -> int:
        return self._position

    def __iter__(self) -> Iterator[FileRow]:
        records = self._records()
        next(records)
        n = len(self.columns)
        for line, cells, fault in records:
            uneven = (
                f"{len(cells)} cells, the header has {n}. Quote cells that hold "
                f"{self._delimiter!r} or a line break"
                if len(cells) != n
                else None
            )
            yield FileRow(line, dict(zip(self.columns, cells, strict=False)), fault or uneven)

    def _records(self) -> Iterator[tuple[int, list[str], str | None]]:
        """First line, cells and fault of each record, without blank ones."""
        csv.field_size_limit(MAX_LINE)
        with self._open() as lines:
            if self._has_sep:
                lines.readline(MAX_LINE)
            reader = csv.reader(self._lines(lines), delimiter=self._delimiter, strict=True)
            while True:
                begin = reader.line_num + 1 + self._has_sep
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as cause:
                    if "unexpected end" in str(cause) or "field larger" in str(cause):
                        raise DatasetError(
                            f"{self._path}, line {begin}: a quoted cell that opens here never "
                            "ends. The file is cut off or a quote is missing: mend the line or "
                            "copy the file again."
                        ) from cause
                    yield begin, [], f"not CSV ({cause}). Double the quotes inside quoted cells"
                    continue
                self._position = self._raw.tell()
                if any(cells):
                    yield begin, cells, None

    @contextlib.contextmanager
    def _open(self) -> Iterator[io.TextIOWrapper]:
        encoding = "utf-8-sig" if self._encoding == "utf-8" else self._encoding
        with (
            translate_read_errors(self._path),
            open_bytes(self._path) as raw,
            io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="") as text,
        ):
            self._raw = raw
            yield text

    def _detect_encoding(self) -> str:
        """UTF-16 by its mark; Windows-1252 where more bytes are no UTF-8 than characters are; else
        UTF-8, whose invalid rows are rejected.
        """
        n_invalid = n_valid = 0
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        encoding = "utf-8"
        with translate_read_errors(self._path), open_bytes(self._path) as file:
            while (block := file.read(MEGABYTE)) and encoding == "utf-8":
                if file.tell() <= MEGABYTE and block.startswith(UTF_16):
                    encoding = "utf-16"
                elif file.tell() <= MEGABYTE and 0 in block[:2]:  # without a mark
                    encoding = "utf-16-be" if block[0] == 0 else "utf-16-le"
                others = [c for c in decoder.decode(block) if not c.isascii()]
                invalid = sum("\udc80" <= c <= "\udcff" for c in others)
                n_invalid, n_valid = n_invalid + invalid, n_valid + len(others) - invalid
        if encoding == "utf-8" and n_invalid > n_valid:
            encoding = WINDOWS
        if encoding != "utf-8":
            self.notes.append(
                f"read as {NAMES.get(encoding, 'UTF-16')}, not UTF-8 (--encoding names another)"
            )
        return encoding

    def _lines(self, file: io.TextIOWrapper) -> Iterator[str]:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) >= MAX_LINE:
                raise DatasetError(
                    f"{self._path}, line {number}: no end of line within {MAX_LINE // MEGABYTE} "
                    "MB. Is it a text file?"
                )
            yield line


def _detect_delimiter(header: str) -> str:
    """The delimiter that makes most columns of a header, its quoted cells left out."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=unquoted.count)


def find_undecoded(cells: Iterable[object]) -> str | None:
    """Why the first of the cells with surrogates is not UTF-8, with the cure."""
    for cell in cells:
        if isinstance(cell, str) and not cell.isascii():
            try:
                cell.encode("utf-8", "surrogateescape").decode("utf-8")
            except UnicodeDecodeError as cause:
                return f"not UTF-8 (byte {cause.start + 1} of a cell). Save the file as UTF-8"
    return None
