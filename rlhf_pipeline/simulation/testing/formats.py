"""Checks a file format: it counts rows, refuses broken frames and writes the same bytes again."""

import io
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import (
    FrameSchema,
    check_frame,
    flag,
    integer,
    json_text,
    number,
    text,
    time,
)
from rlhf_pipeline.feedback.datasets.formats.base import Format
from rlhf_pipeline.simulation.testing.members import expect_error

SCHEMA = FrameSchema(
    "sample",
    {
        "text": text("any text"),
        "note": text("any text or none", nullable=True),
        "facts": json_text("an object"),
        "seq": integer("a whole number"),
        "strength": integer("a whole number or none", nullable=True),
        "duration_s": number("a number or none", nullable=True),
        "is_late": flag("yes or no"),
        "is_known": flag("yes, no or none", nullable=True),
        "voted_at": time("a moment or none", nullable=True),
    },
)
# Texts that a format may mistake for a formula, a number, a missing value, or the end of a row.
HOSTILE_TEXTS = (
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1+1", "\u00a0=1"),
    *("＝1", "＋1", "－1", "＠1", "'", "''", "'=1", "'plain"),
    *('=HYPERLINK("http://evil";"x")', "=cmd|' /C calc'!A0"),
    *("", " ", "NA", "null", "None", "NaN", "true", "1e5", "007"),
    *("a,b;c\td", 'say "hi"', "two\nlines", "two\r\nlines", "old\rmac", "\n", "\r\n"),
    *("trailing\n", "\u2028", "\u2029x", "\x85", "\x0b\x0c\x1c", "nul\x00inside"),
    *("\ufeffbom", "für dich ✓ 日本語 🎉", "\\n", "\\", '"', '""'),
)
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE_1970 = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)
ROWS: tuple[tuple[Any, ...], ...] = (
    ("a", None, "{}", 2**63 - 1, None, None, True, None, None),
    ("b", "", '{"a": 1}', -(2**63), 2**53 + 1, 0.1 + 0.2, False, True, MIDNIGHT),
    ("c", " ", '{"a": [1, "x"]}', 0, -1, 5e-324, True, False, BEFORE_1970),
)


def check_format(kind: type[Format]) -> None:
    """Check a file format against its protocol. Raises AssertionError with the broken promise.

    That nothing is lost is for the program to check that reads the format.
    """
    for attribute in ("name", "suffix"):
        value = getattr(kind, attribute, None)
        assert isinstance(value, str), f"{kind.__name__}.{attribute} is {value!r}, not a text."
    assert kind.suffix.startswith("."), f"{kind.name}: the suffix {kind.suffix!r} has no dot."
    form = kind()
    frame = build_frame(*ROWS, *(build_row(text, text) for text in HOSTILE_TEXTS))
    assert write_bytes(form, frame[:2], frame[2:]) == write_bytes(form, frame[:2], frame[2:]), (
        f"{form.name}: the same frames give other bytes when they are written again."
    )
    write_bytes(form)
    write_bytes(form, SCHEMA.empty_frame())
    message = expect_error(
        FrameError,
        lambda: form.write([pd.DataFrame({"text": ["x"]})], SCHEMA, io.BytesIO()),
        f"{form.name}: writes a frame that breaks its schema; it must raise FrameError.",
    )
    assert "missing columns" in message, f"{form.name}: the refusal does not say why: {message}"


def build_frame(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """A frame of SCHEMA."""
    return check_frame(pd.DataFrame(rows, columns=list(SCHEMA.columns), dtype=object), SCHEMA)


def build_row(text: str = "x", note: str | None = None) -> tuple[Any, ...]:
    return (text, note, "{}", 1, None, None, True, None, None)


def write_bytes(form: Format, *frames: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    n_rows = form.write(iter(frames), SCHEMA, file)
    n_expected = sum(map(len, frames))
    assert n_rows == n_expected, f"{form.name}: write returns {n_rows} for {n_expected} rows."
    assert not file.closed, f"{form.name}: write closes the file; the caller does that."
    return file.getvalue()
