"""What a cell means as text, id, number, choice or moment, whatever kind of file it stands in.
Knows values; knows no column.
"""

import datetime as dt
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.records import Choice

MAX_TEXT = 1_000_000  # bytes of one text: beyond any context window, and what a page can show
MAX_ID = 200  # characters
EARLIEST = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)  # a clock that was never set says 1970
SPARE = dt.timedelta(days=1)  # that a clock may be ahead of ours
MILLISECONDS_FROM = 1e11  # as seconds that is the year 5138
UNIX_TIME = re.compile(r"\d{9,}(\.\d+)?")  # else taken for a date of the year 1610
BYTE_AS_SURROGATE = re.compile("[\udc80-\udcff]")

E = TypeVar("E", bound=StrEnum)


class RowRejected(Exception):
    """Why one row is not imported. Never leaves this package: it becomes a line of the rejects."""


def is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def parse_text(value: Any, name: str, *, may_be_empty: bool = False) -> str:
    """A text that both databases can hold. Raises Rejected for one that is missing, too long, or
    broken in its encoding.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise RowRejected(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowRejected(f"{name} is a {type(value).__name__}, not a text")
    if isinstance(value, float) and math.isinf(value):
        raise RowRejected(
            f"{name} is {value}, not a text. Its number was too large for the file: write it as "
            "text"
        )
    said = value if isinstance(value, str) else _number_as_text(value)
    if not may_be_empty and not said.strip():
        raise RowRejected(f"{name} is empty")
    try:
        size = len(said.encode())
    except UnicodeEncodeError as cause:
        if BYTE_AS_SURROGATE.match(said[cause.start]):
            raise RowRejected(
                f"{name} is not UTF-8 (byte 0x{ord(said[cause.start]) - 0xDC00:02X} after "
                f"{cause.start:,} characters). Save the file as UTF-8"
            ) from cause
        raise RowRejected(
            f"{name} holds half a character (U+{ord(said[cause.start]):04X}). It was cut within an "
            "emoji: write it whole"
        ) from cause
    if size > MAX_TEXT:
        raise RowRejected(
            f"{name} has {size:,} bytes, the limit is {MAX_TEXT:,}. Shorten or drop it"
        )
    if "\0" in said:
        raise RowRejected(f"{name} holds a NUL character, which Postgres cannot store. Remove it")
    return said


def parse_optional_text(value: Any, name: str) -> str | None:
    return None if is_missing(value) else parse_text(value, name, may_be_empty=True)


def parse_identifier(value: Any, name: str) -> str:
    """An id as text without blanks around it: 7, 7.0 and "7" are the same one."""
    said = parse_text(value, name).strip()
    if len(said) > MAX_ID:
        raise RowRejected(
            f"{name} has {len(said):,} characters, the limit is {MAX_ID}. Is it another column?"
        )
    return said


def parse_optional_identifier(value: Any, name: str) -> str | None:
    return None if is_missing(value) else parse_identifier(value, name)


def parse_number(value: Any, name: str, *, low: float, high: float = math.inf) -> float | None:
    """A finite number within bounds; None where there is none."""
    if is_missing(value):
        return None
    try:
        found = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise RowRejected(f"{name} is {_abbreviate(value)}, not a finite number")
    if not low <= found <= high:
        raise RowRejected(
            f"{name} is {found:g}, it lies between {low:g} and {high:g}"
            if high < math.inf
            else f"{name} is {found:g}, below {low:g}"
        )
    return found


def parse_integer(value: Any, name: str, *, low: int, high: int) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value  # beyond 2^53 a float would be another number
    found = parse_number(value, name, low=low, high=high)
    if found is not None and found != int(found):
        raise RowRejected(f"{name} is {found:g}, not a whole number")
    return None if found is None else int(found)


def parse_enum(value: Any, name: str, allowed: type[E]) -> E:
    said = str(value).strip().lower() if not is_missing(value) else ""
    try:
        return allowed(said)
    except ValueError:
        raise RowRejected(
            f"{name} is {_abbreviate(value)}; allowed: {', '.join(allowed)}"
        ) from None


def parse_optional_word(value: Any, name: str, allowed: tuple[str, ...]) -> str | None:
    if is_missing(value):
        return None
    said = str(value).strip().lower()
    if said not in allowed:
        raise RowRejected(f"{name} is {_abbreviate(value)}; allowed: {', '.join(allowed)}")
    return said


def parse_choice(value: Any, words: Mapping[str, Choice]) -> Choice:
    """A choice by the words of the mapping, else by ours in any case."""
    said = (
        _number_as_text(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )
    if not is_missing(value) and said.strip() in words:
        return words[said.strip()]
    try:
        return parse_enum(value, "choice", Choice)
    except RowRejected as cause:
        raise RowRejected(f"{cause}. Map other words under `choices:` of --mapping") from None


class MomentParser:
    """Reads moments; `zone` is meant where a moment names none. Counts which it met."""

    def __init__(self, zone: str = "UTC", *, now: dt.datetime) -> None:
        try:
            self._zone: dt.tzinfo = dt.UTC if zone.upper() == "UTC" else ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as cause:
            raise DatasetError(
                f"There is no time zone {zone!r}. Give a name such as UTC or Europe/Berlin."
            ) from cause
        self.name = zone
        self._latest = now + SPARE
        self.n_with_zone = self.n_without_zone = 0

    def parse(self, value: Any, name: str) -> dt.datetime | None:
        """In UTC, to the microsecond; None where there is none. Raises Rejected for what is no
        moment, or none that can be.
        """
        if is_missing(value):
            return None
        found = self._parse_naive(value, name)
        if found.tzinfo is None:
            self.n_without_zone += 1
            found = found.replace(tzinfo=self._zone)
        else:
            self.n_with_zone += 1
        try:
            found = found.astimezone(dt.UTC)
        except (OverflowError, ValueError):
            raise RowRejected(f"{name} {_abbreviate(value)} is no moment") from None
        if found < EARLIEST:
            raise RowRejected(
                f"{name} {_abbreviate(value)} lies before {EARLIEST.year}: no clock that was set "
                "says so"
            )
        if found > self._latest:
            raise RowRejected(f"{name} {_abbreviate(value)} lies in the future")
        return found

    def _parse_naive(self, value: Any, name: str) -> dt.datetime:
        said = value
        if isinstance(value, dt.datetime):
            return value
        if isinstance(value, dt.date):
            # the zone follows
            return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001
        if isinstance(value, str) and not UNIX_TIME.fullmatch(value.strip()):
            try:
                return dt.datetime.fromisoformat(value.strip())
            except ValueError:
                value = None
        try:
            seconds = float(value) if not isinstance(value, bool) else math.nan
            seconds = seconds / 1000 if seconds >= MILLISECONDS_FROM else seconds
            return dt.datetime.fromtimestamp(seconds, dt.UTC)
        except (TypeError, ValueError, OverflowError, OSError):
            raise RowRejected(
                f"{name} {_abbreviate(said)} is no moment. Write ISO 8601, as "
                "2026-01-31T12:00:00Z, or Unix seconds"
            ) from None


def _number_as_text(value: float) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _abbreviate(value: Any) -> str:
    said = repr(value if isinstance(value, str | int | float | bool | None) else str(value))
    return said if len(said) <= 60 else f"{said[:57]}…"
