"""Parses cells of imported files as text, id, number, choice or time."""

import datetime as dt
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rlhf_pipeline.core.conversations import (
    END_TOKENS,
    RENDERED,
    ConversationError,
    parse_prompt,
)
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import Choice

MAX_TEXT = 1_000_000  # bytes of one text; more exceeds any context window and what a page can show
MAX_ID = 200  # characters
FLAGS = {"true": True, "false": False, "1": True, "0": False}
EARLIEST = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)  # clocks that were never set report 1970
EXCEL = "excel"
EXCEL_EPOCH = dt.datetime(1899, 12, 30)  # noqa: DTZ001 (spreadsheets know no zone)
SPARE = dt.timedelta(days=1)  # tolerance for clocks ahead of ours
MILLISECONDS_FROM = 1e11  # in seconds this would be the year 5138
UNIX_TIME = re.compile(r"\d{9,}(\.\d+)?")  # else fromisoformat reads a date of the year 1610
ZONE_NAME = re.compile(r"\s*(UTC|GMT)$")  # as databases write it after a time
WHOLE_NUMBER = re.compile(r"^([-+]?\d+)\.0+$")
BYTE_AS_SURROGATE = re.compile("[\udc80-\udcff]")

E = TypeVar("E", bound=StrEnum)


class RowRejected(Exception):
    """Why a row is not imported. Stays within this package: it becomes a line of the rejects
    file.
    """


def is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def parse_text(value: Any, name: str, *, may_be_empty: bool = False) -> str:
    """A text that both databases can store. Raises RowRejected if it is missing, too long or badly
    encoded.
    """
    text = value if isinstance(value, str) else _number_as_text(value, name)
    if not may_be_empty and not text.strip():
        raise RowRejected(f"{name} is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as cause:
        if BYTE_AS_SURROGATE.match(text[cause.start]):
            raise RowRejected(
                f"{name} is not UTF-8 (byte 0x{ord(text[cause.start]) - 0xDC00:02X} after "
                f"{cause.start:,} characters). Save the file as UTF-8"
            ) from cause
        raise RowRejected(
            f"{name} contains a lone surrogate (U+{ord(text[cause.start]):04X}), half of a "
            "character. Write the whole character"
        ) from cause
    if size > MAX_TEXT:
        raise RowRejected(
            f"{name} has {size:,} bytes, the limit is {MAX_TEXT:,}. Shorten or drop it"
        )
    if "\0" in text:
        raise RowRejected(
            f"{name} contains a NUL character, which Postgres cannot store. Remove it"
        )
    return text


def parse_completion(value: Any, name: str) -> str:
    """The text of a completion, which may be empty. Raises RowRejected for one that a chat template
    wrote: policies would learn its marks as text.
    """
    text = parse_text(value, name, may_be_empty=True)
    ended = text.rstrip()
    token = next(filter(ended.endswith, END_TOKENS), None)
    if token is not None and not (token == "</s>" and "<s>" in text):  # HTML has <s>…</s>
        raise RowRejected(f"{name} ends with {token!r}, which a chat template wrote. Leave it out")
    if text.lstrip().startswith(RENDERED):
        raise RowRejected(
            f"{name} begins with {text.strip()[:20]!r}, which a chat template wrote. Give the "
            "answer alone"
        )
    return text


def parse_prompt_cell(value: Any) -> str:
    """A prompt as it is stored: a text, or messages in a list. Raises RowRejected."""
    if isinstance(value, list | dict):
        try:
            value = parse_prompt(value)
        except ConversationError as cause:
            raise RowRejected(str(cause)) from cause
    return parse_text(value, "prompt")


def parse_optional_text(value: Any, name: str) -> str | None:
    return None if is_missing(value) else parse_text(value, name, may_be_empty=True)


def parse_identifier(value: Any, name: str) -> str:
    """An id as stripped text; 7, 7.0, "7" and "7.0" are the same id. Raises RowRejected."""
    identifier = write_whole_numbers(parse_text(value, name).strip())
    if len(identifier) > MAX_ID:
        raise RowRejected(
            f"{name} has {len(identifier):,} characters, the limit is {MAX_ID}. Is it another "
            "column?"
        )
    return identifier


def parse_optional_identifier(value: Any, name: str) -> str | None:
    if is_missing(value):
        return None
    if isinstance(value, list | dict):
        raise RowRejected(
            f"{name} is a {type(value).__name__}, not a text. Leave its column out with --leave-out"
        )
    return parse_identifier(value, name)


def parse_number(value: Any, name: str, *, low: float, high: float = math.inf) -> float | None:
    """A finite number from `low` to `high`, or None if missing. Raises RowRejected."""
    if is_missing(value):
        return None
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RowRejected(f"{name} is {_abbreviate(value)}, not a finite number")
    if not low <= number <= high:
        raise RowRejected(
            f"{name} is {number:g}; expected {low:g} to {high:g}"
            if high < math.inf
            else f"{name} is {number:g}; expected at least {low:g}"
        )
    return number


def parse_integer(value: Any, name: str, *, low: int, high: int) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value  # a float cannot represent integers above 2^53
    number = parse_number(value, name, low=low, high=high)
    if number is not None and number != int(number):
        raise RowRejected(f"{name} is {number:g}, not a whole number")
    return None if number is None else int(number)


def parse_enum(value: Any, name: str, allowed: type[E]) -> E:
    word = "_".join(str(value).lower().split()) if not is_missing(value) else ""
    try:
        return allowed(word)
    except ValueError:
        raise RowRejected(
            f"{name} is {_abbreviate(value)}; allowed: {', '.join(allowed)}"
        ) from None


def parse_optional_word(value: Any, name: str, allowed: tuple[str, ...]) -> str | None:
    if is_missing(value):
        return None
    word = str(value).strip().lower()
    if word not in allowed:
        raise RowRejected(f"{name} is {_abbreviate(value)}; allowed: {', '.join(allowed)}")
    return word


def parse_optional_flag(value: Any, name: str) -> bool | None:
    """True for true or 1, False for false or 0, None if missing. Raises RowRejected."""
    if is_missing(value):
        return None
    word = write_whole_numbers(str(value).strip().lower())
    if word not in FLAGS:
        raise RowRejected(f"{name} is {_abbreviate(value)}; allowed: {', '.join(FLAGS)}")
    return FLAGS[word]


def parse_choice(value: Any, words: Mapping[str, Choice]) -> Choice:
    """A choice by the words of the mapping, else by our own words in any letter case. Raises
    RowRejected.
    """
    word = write_whole_numbers(str(value).strip())
    if not is_missing(value) and word in words:
        return words[word]
    try:
        return parse_enum(value, "choice", Choice)
    except RowRejected as cause:
        raise RowRejected(f"{cause}. Name other words with --choice WORD=a") from None


class MomentParser:
    """Parses times; `zone` applies to times without one. Counts times with and without a zone, and
    those that the zone's clocks skip or have twice.

    `time_format` is a pattern of strptime, or EXCEL for days since 1899-12-30; by default ISO 8601
    or Unix seconds.
    """

    def __init__(
        self, zone: str = "UTC", *, now: dt.datetime, time_format: str | None = None
    ) -> None:
        try:
            self._zone: dt.tzinfo = dt.UTC if zone.upper() == "UTC" else ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as cause:
            raise DatasetError(
                f"Unknown time zone {zone!r}. Give a name such as UTC or Europe/Berlin."
            ) from cause
        self.name = zone
        self._latest = now + SPARE
        self._format = time_format
        self.n_with_zone = self.n_without_zone = 0
        self.n_skipped = self.n_doubled = 0

    def parse(self, value: Any, name: str) -> dt.datetime | None:
        """The time in UTC, to the microsecond, or None if missing. Raises RowRejected if it is
        invalid or out of range.
        """
        if is_missing(value):
            return None
        moment = self._parse_naive(value, name)
        if moment.tzinfo is None:
            self.n_without_zone += 1
            moment = moment.replace(tzinfo=self._zone)
            self._count_ambiguous(moment)
        else:
            self.n_with_zone += 1
        try:
            moment = moment.astimezone(dt.UTC)
        except (OverflowError, ValueError):
            raise RowRejected(f"{name} is {_abbreviate(value)}, not a valid time") from None
        if moment < EARLIEST:
            raise RowRejected(
                f"{name} is {_abbreviate(value)}, before {EARLIEST.year}. Check the clock that "
                "wrote it; days of a spreadsheet need --time-format excel"
            )
        if moment > self._latest:
            raise RowRejected(f"{name} is {_abbreviate(value)}, in the future")
        return moment

    def _count_ambiguous(self, moment: dt.datetime) -> None:
        """Count a time in the hour that clocks skip in spring, or have twice in autumn."""
        if moment.utcoffset() == moment.replace(fold=1).utcoffset():
            return
        back = moment.astimezone(dt.UTC).astimezone(self._zone)
        is_skipped = back.replace(tzinfo=None) != moment.replace(tzinfo=None)
        self.n_skipped += is_skipped
        self.n_doubled += not is_skipped

    def _parse_formatted(self, value: Any, name: str) -> dt.datetime:
        try:
            if self._format == EXCEL:
                return EXCEL_EPOCH + dt.timedelta(days=float(str(value).replace(",", ".")))
            return dt.datetime.strptime(str(value).strip(), str(self._format))  # noqa: DTZ007
        except (ValueError, OverflowError):
            raise RowRejected(
                f"{name} is {_abbreviate(value)}, not of the form {self._format}"
            ) from None

    def _parse_naive(self, value: Any, name: str) -> dt.datetime:
        cell = value
        if self._format is not None and not isinstance(value, dt.date):
            return self._parse_formatted(value, name)
        if isinstance(value, dt.datetime):
            return value
        if isinstance(value, dt.date):
            # the caller adds the zone
            return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001
        if isinstance(value, str) and not UNIX_TIME.fullmatch(value.strip()):
            try:
                return dt.datetime.fromisoformat(ZONE_NAME.sub("+00:00", value.strip()))
            except ValueError:
                value = None
        try:
            seconds = float(value) if not isinstance(value, bool) else math.nan
            seconds = seconds / 1000 if seconds >= MILLISECONDS_FROM else seconds
            return dt.datetime.fromtimestamp(seconds, dt.UTC)
        except (TypeError, ValueError, OverflowError, OSError):
            raise RowRejected(
                f"{name} is {_abbreviate(cell)}, not a valid time. Write ISO 8601, such as "
                "2026-01-31T12:00:00Z, or Unix seconds, or name its form: --time-format "
                "'%d.%m.%Y %H:%M', or excel for days of a spreadsheet"
            ) from None


def write_whole_numbers(text: str) -> str:
    """The text without the `.0` of a whole number, which tools add to columns with gaps.

    >>> write_whole_numbers("7.0"), write_whole_numbers("7.05")
    ('7', '7.05')
    """
    return WHOLE_NUMBER.sub(r"\1", text) if text.endswith("0") else text


def _number_as_text(value: Any, name: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise RowRejected(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowRejected(f"{name} is a {type(value).__name__}, not a text")
    if isinstance(value, float) and math.isinf(value):
        raise RowRejected(
            f"{name} is {value}, not a text. Numbers this large must be written as text"
        )
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _abbreviate(value: Any) -> str:
    text = repr(value if isinstance(value, str | int | float | bool | None) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}…"
