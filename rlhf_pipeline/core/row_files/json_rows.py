"""Reads rows of JSONL files line by line, and of small JSON documents as a whole."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any

from rlhf_pipeline.core.documents import DocumentError, parse_json, parse_json_at
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files.rows import (
    GZIP,
    MAX_LINE,
    MEGABYTE,
    FileRow,
    count_bytes,
    open_bytes,
    translate_read_errors,
)

MAX_JSON = 100 * MEGABYTE  # limit in bytes, because a .json file is read whole


# An array, also as a member of an object beside numbers and short texts
OPENING = re.compile(r'\s*(\{\s*("[^"]*"\s*:\s*("[^"]*"|[-\w.]+)\s*,\s*)*"[^"]*"\s*:\s*)?\[')
PRETTY = re.compile(rb"\s*[\[{]\s*(\"[^\"]*\"\s*:\s*[\[{]?\s*)?$")


def is_document(path: Path) -> bool:
    """Whether a file of JSON holds one document, an array or objects over several lines, instead
    of an object a line. An object with an array on the only line is a document by its suffix.
    """
    with translate_read_errors(path), open_bytes(path) as file:
        first = next((line for line in _raw_lines(file) if line is None or line.strip()), b"")
        others = next((line for line in _raw_lines(file) if line is None or line.strip()), b"")
    first = (first or b"").removeprefix(b"\xef\xbb\xbf").strip()
    if first.startswith(b"[") or PRETTY.match(first):
        return True
    is_json = path.name.lower().removesuffix(GZIP).endswith(".json")
    return is_json and not others and OPENING.match(first.decode("utf-8", "replace")) is not None


class JsonLines:
    is_csv = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = count_bytes(path)
        self.notes: list[str] = []
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
        with translate_read_errors(self._path), open_bytes(self._path) as file:
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


def _raw_lines(file: IO[bytes]) -> Iterator[bytes | None]:
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
            f"{json.dumps(cells):.40} is not an object. Write one JSON object a line",
        )
    return FileRow(line, cells)


def _columns_of(rows: Iterable[FileRow]) -> list[str]:
    """Union of the keys of all rows: a key, such as the split, may first occur in the last
    object.
    """
    return list(dict.fromkeys(name for row in rows if row.fault is None for name in row.cells))


class JsonDocument:
    """A JSON array of objects or texts, an object that holds such an array, or objects one after
    another; read whole.
    """

    is_csv = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = count_bytes(path)
        self.notes: list[str] = []
        with translate_read_errors(path), open_bytes(path) as file:
            raw = file.read(MAX_JSON + 1)
        if len(raw) > MAX_JSON:
            raise DatasetError(
                f"{path} has {self.size or len(raw):,} bytes; .json is read whole, up to "
                f"{MAX_JSON:,}. Write one object a line, as .jsonl."
            )
        try:
            self._text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as cause:
            line = raw[: cause.start].count(b"\n") + 1
            raise DatasetError(
                f"{path}, line {line}: not UTF-8 (byte {cause.start + 1} of the file). Save the "
                "file as UTF-8."
            ) from cause
        opening = None if self._is_sequence() else OPENING.match(self._text)
        if opening is None and not self._text.lstrip().startswith("{"):
            raise DatasetError(
                f"{path} holds no JSON array. Write [{{…}}, {{…}}], or one object a line as .jsonl."
            )
        self._is_array = opening is not None
        self._start = opening.end() if opening else 0
        self._position = 0
        self.columns = _columns_of(self._rows())
        if self._is_array:
            self._read_rest(is_member="{" in self._text[: self._start])

    def _read_rest(self, *, is_member: bool) -> None:
        """Note what stands beside the list of rows. Raises DatasetError for further rows."""
        rest = self._text[self._end + 1 :].strip()
        try:
            # what follows is the end of an object, or nothing
            others = parse_json("{" + rest.removeprefix(",")) if is_member else {}
        except (ValueError, RecursionError):
            others = None
        lists = [name for name, value in (others or {}).items() if value and type(value) is list]
        if others is None or lists or (rest and not is_member):
            further = f"further lists: {', '.join(lists)}" if lists else f"{rest:.20}"
            raise DatasetError(
                f"{self._path} goes on after its first list of rows ({further}). Write the rows of "
                "each list into a file of their own, one object a line, as .jsonl."
            )
        if others:
            self.notes.append(f"left out beside the rows: {', '.join(others)}")

    def _is_sequence(self) -> bool:
        """Whether another value follows the first object."""
        begin = _skip(_BLANK, self._text, 0)
        try:
            first, end = parse_json_at(self._text, begin)
        except (ValueError, RecursionError):
            return False
        return isinstance(first, dict) and bool(self._text[end:].strip())

    @property
    def position(self) -> int:
        return self._position

    def __iter__(self) -> Iterator[FileRow]:
        return self._rows()

    def _rows(self) -> Iterator[FileRow]:
        text = self._text
        line = 1
        counted = 0
        at = _skip(_BLANK, text, self._start)
        while not self._is_end(at):
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
            at = _skip(_BLANK, text, at)
            if text[at : at + 1] == ",":
                at = _skip(_BLANK, text, at + 1)
            elif self._is_array and not self._is_end(at):
                line += text.count("\n", counted, at)
                raise DatasetError(
                    f"{self._path}, line {line}: no comma and no ] after an element. Mend it "
                    "there, or copy the file again."
                )

        self._end = at

    def _is_end(self, at: int) -> bool:
        return self._text[at : at + 1] == "]" if self._is_array else at >= len(self._text)


_BLANK = re.compile(r"\s*")


def _skip(blank: re.Pattern[str], text: str, at: int) -> int:
    match = blank.match(text, at)
    return match.end() if match else at


def _element(line: int, value: Any) -> FileRow:
    if isinstance(value, dict):
        return FileRow(line, value)
    if isinstance(value, str):
        return FileRow(line, {"text": value})
    return FileRow(line, {"": value}, f"{json.dumps(value):.40} is neither an object nor a text")
