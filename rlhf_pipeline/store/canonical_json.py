"""Fast canonical JSON of flat rows: the same bytes that `records.content_hash` digests.

A vote is digested three times under the write lock, while all others wait for it; `json.dumps`
takes four times as long.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

Keys = tuple[
    tuple[str, str], ...
]  # column and the JSON text before its value, in the order of the output


def keys_of(names: Iterable[str]) -> Keys:
    """Encoded keys of these columns; make them once for many rows."""
    return tuple((name, f"{encode_basestring(name)}:") for name in sorted(names))


def flat_json(row: Mapping[str, Any], keys: Keys) -> str:
    """The columns `keys` of a row as one JSON object.

    >>> flat_json({"b": "é", "a": None}, keys_of(["a", "b"]))
    '{"a":null,"b":"é"}'
    """
    return (
        "{"
        + ",".join(
            [
                opening + _WRITERS.get(type(value := row[name]), _format_other)(value)
                for name, opening in keys
            ]
        )
        + "}"
    )


def _format_null(value: None) -> str:
    return "null"


def _format_float(value: float) -> str:
    return float.__repr__(value) if isfinite(value) else _format_other(value)


def _format_datetime(value: datetime) -> str:
    return f'"{value}"'


def _format_other(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: int.__repr__,
    float: _format_float,
    type(None): _format_null,
    datetime: _format_datetime,
}
