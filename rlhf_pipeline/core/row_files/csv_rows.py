"""Reads the rows of CSV and TSV files record by record."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.rows import MAX_LINE, MEGABYTE, FileRow, translate_read_errors


class CsvFile:
    """A CSV file quoted as in RFC 4180. Bytes that are not UTF-8 become surrogates, so that only
    their row is rejected.
    """

    is_csv = True

    def __init__(self, path: Path, delimiter: str) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise DatasetError(
                f"--delimiter {delimiter!r}: give one character, such as ';' (for a tab name the "
                "file .tsv)."
            )
        self._path = path
        self._delimiter = delimiter
        self.size = path.stat().st_size
        self._position = 0
        line, self.columns, fault = next(self._records(), (1, [], "no header"))
        fault = fault or find_undecoded(self.columns)
        if fault is not None:
            raise DatasetError(f"{path}, line {line}: {fault}. The first line names the columns.")
        names = [name.strip() for name in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DatasetError(
                f"{path}, line {line}: columns {twice} come twice in the header. Rename one of "
                "them."
            )
        if len(self.columns) == 1:
            self._refuse_other_delimiter(line)

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
        """First line, cells and fault of each record, without blank lines."""
        csv.field_size_limit(MAX_LINE)
        with translate_read_errors(self._path), self._path.open("rb") as raw:
            lines = io.TextIOWrapper(
                raw, encoding="utf-8-sig", errors="surrogateescape", newline=""
            )
            reader = csv.reader(self._lines(lines), delimiter=self._delimiter, strict=True)
            while True:
                begin = reader.line_num + 1
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
                self._position = raw.tell()
                if cells:
                    yield begin, cells, None

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

    def _refuse_other_delimiter(self, line: int) -> None:
        """Raise DatasetError if a one-column header suggests another delimiter, instead of
        rejecting every row.
        """
        for other in ";\t|":
            if other in self.columns[0]:
                name = "a tab" if other == "\t" else repr(other)
                option = "$'\\t'" if other == "\t" else f"'{other}'"
                raise DatasetError(
                    f"{self._path}, line {line}: the columns are separated by {name}, not by "
                    f"{self._delimiter!r}: the header is one cell. Add --delimiter {option} to "
                    f"`rlhf import`, or save the file with {self._delimiter!r}."
                )


def find_undecoded(cells: Iterable[object]) -> str | None:
    """Why the first of the cells with surrogates is not UTF-8, with the cure."""
    for cell in cells:
        if isinstance(cell, str) and not cell.isascii():
            try:
                cell.encode("utf-8", "surrogateescape").decode("utf-8")
            except UnicodeDecodeError as cause:
                return f"not UTF-8 (byte {cause.start + 1} of a cell). Save the file as UTF-8"
    return None
