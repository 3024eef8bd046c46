"""Reads rows of JSONL files line by line, and of small JSON files with one array."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO

from rlhf_pipeline.core.documents import DocumentError, parse_json, parse_json_at
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.rows import MAX_LINE, MEGABYTE, FileRow, translate_read_errors

MAX_JSON = 100 * MEGABYTE  # limit in bytes, because a .json file is read whole


class JsonLines:
    is_csv = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size
        self._position = 0

    @cached_property
    def columns(self) -> list[str]:
        """Reads the whole file."""
        return _columns_of(self._rows())

    @property
    def position(self) -> int:
        return self._position

    def __iter__(self) -> Iterator[FileRow]:
        return self._rows()

    def _rows(self) -> Iterator[FileRow]:
        self._position = 0
        with translate_read_errors(self._path), self._path.open("rb") as file:
            for line, raw in enumerate(_raw_lines(file), start=1):
                self._position = file.tell()
                if raw is None:
                    yield FileRow(
                        line,
                        {},
                        f"longer than {MAX_LINE // MEGABYTE} MB. Shorten it or split the file",
                    )
                elif raw.strip():
                    yield _json_row(line, raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw)


def _raw_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines of the file; None for a line that is too long."""
    while raw := file.readline(MAX_LINE):
        if len(raw) < MAX_LINE or raw.endswith(b"\n"):
            yield raw
            continue
        while raw and not raw.endswith(b"\n"):
            raw = file.readline(MAX_LINE)
        yield None


def _json_row(line: int, raw: bytes) -> FileRow:
    try:
        cells = parse_json(raw.decode("utf-8"))
    except UnicodeDecodeError as cause:
        return FileRow(
            line,
            {"": raw.decode("utf-8", "replace").rstrip()},
            f"not UTF-8 (byte {cause.start + 1} of the line). Save the file as UTF-8",
        )
    except DocumentError as cause:
        return FileRow(line, {"": raw.decode("utf-8").rstrip()}, str(cause))
    except (ValueError, RecursionError) as cause:
        reason = (
            f"{cause.msg}, column {cause.colno}" if isinstance(cause, JSONDecodeError) else cause
        )
        return FileRow(
            line,
            {"": raw.decode("utf-8", "replace").rstrip()},
            f"no JSON ({reason}). Write one JSON object a line",
        )
    if not isinstance(cells, dict):
        return FileRow(
            line,
            {"": cells},
            f"a {type(cells).__name__}, not an object. Write one JSON object a line",
        )
    return FileRow(line, cells)


def _columns_of(rows: Iterable[FileRow]) -> list[str]:
    """Union of the keys of all rows: a key, such as the split, may first occur in the last
    object.
    """
    return list(dict.fromkeys(name for row in rows if row.fault is None for name in row.cells))


class JsonArray:
    """A JSON array of objects or texts, or an object whose first member is such an array; read
    whole.
    """

    is_csv = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size
        if self.size > MAX_JSON:
            raise DatasetError(
                f"{path} has {self.size:,} bytes; .json is read whole, up to {MAX_JSON:,}. Write "
                "one object a line, as .jsonl."
            )
        try:
            self._text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as cause:
            line = path.read_bytes()[: cause.start].count(b"\n") + 1
            raise DatasetError(
                f"{path}, line {line}: not UTF-8 (byte {cause.start + 1} of the file). Save the "
                "file as UTF-8."
            ) from cause
        opening = re.match(r'\s*(\{\s*"[^"]*"\s*:\s*)?\[', self._text)
        if opening is None:
            raise DatasetError(
                f"{path} holds no JSON array. Write [{{…}}, {{…}}], or one object a line as .jsonl."
            )
        self._start = opening.end()
        self._position = 0
        self.columns = _columns_of(self._rows())

    @property
    def position(self) -> int:
        return self._position

    def __iter__(self) -> Iterator[FileRow]:
        return self._rows()

    def _rows(self) -> Iterator[FileRow]:
        text, blank = self._text, re.compile(r"\s*")
        at = self._start
        line = 1
        counted = 0
        at = _skip(blank, text, at)
        while text[at : at + 1] != "]":
            line, counted = line + text.count("\n", counted, at), at
            try:
                value, at = parse_json_at(text, at)
            except DocumentError as cause:
                raise DatasetError(f"{self._path}, line {line}: {cause}.") from cause
            except (ValueError, RecursionError) as cause:
                raise DatasetError(
                    f"{self._path}, line {line}: no JSON ({cause}). Mend it there; if it ends "
                    "there, copy the file again."
                ) from cause
            yield _element(line, value)
            self._position = at
            at = _skip(blank, text, at)
            if text[at : at + 1] == ",":
                at = _skip(blank, text, at + 1)
            elif text[at : at + 1] != "]":
                line += text.count("\n", counted, at)
                raise DatasetError(
                    f"{self._path}, line {line}: no comma and no ] after an element. Mend it "
                    "there, or copy the file again."
                )


def _skip(blank: re.Pattern[str], text: str, at: int) -> int:
    match = blank.match(text, at)
    return match.end() if match else at


def _element(line: int, value: Any) -> FileRow:
    if isinstance(value, dict):
        return FileRow(line, value)
    if isinstance(value, str):
        return FileRow(line, {"text": value})
    return FileRow(line, {"": value}, f"a {type(value).__name__}, neither an object nor a text")
