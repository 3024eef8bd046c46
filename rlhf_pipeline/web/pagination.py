"""Opaque cursors and the limits of lists."""

import base64
import binascii
import json
from typing import Annotated, Any

import pandas as pd
from fastapi import Query

from rlhf_pipeline.api_types.base import LARGEST, MOST_LISTED
from rlhf_pipeline.api_types.filters import Filter
from rlhf_pipeline.web.problems import Problem

Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
Paged = Annotated[Filter, Query()]  # of a list without filters


def make_cursor(*place: str | int) -> str:
    """
    >>> parse_cursor(make_cursor("2026-01-01", 7), str, int)
    ('2026-01-01', 7)
    """
    return (
        base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode())
        .decode()
        .rstrip("=")
    )


def parse_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Raises Problem 422 for an invalid cursor."""
    if cursor is None:
        return None
    try:
        place = json.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
        if (
            isinstance(place, list)
            and [type(part) for part in place] == list(kinds)
            and all(_is_sane(part) for part in place)
        ):
            return tuple(place)
    except (binascii.Error, ValueError, RecursionError):
        pass
    raise cursor_problem()


def cursor_problem() -> Problem:
    return Problem(
        422,
        "Invalid cursor. Send `next` of an earlier page of this list, or leave it out.",
        kind="invalid",
        errors=[("query.cursor", "is not a cursor of this list")],
    )


def _is_sane(part: Any) -> bool:
    return (
        "\x00" not in part and part.isprintable() if isinstance(part, str) else abs(part) <= LARGEST
    )


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries, with None for missing values."""
    columns = {name: _plain_values(frame[name]) for name in frame.columns}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _plain_values(column: "pd.Series[Any]") -> list[Any]:
    values: list[Any] = column.tolist()
    is_missing = column.isna()
    if not is_missing.any():
        return values
    return [None if gone else value for value, gone in zip(values, is_missing, strict=True)]
