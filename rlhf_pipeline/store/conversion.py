"""Converts rows to frames, and records and rows to JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Row

from rlhf_pipeline.core.errors import InvalidScores, StoreError
from rlhf_pipeline.core.frames import FrameSchema, check_frame

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")


def frame_of(rows: Sequence[Row[Any]], schema: FrameSchema) -> pd.DataFrame:
    """Rows selected in the order of the schema's columns, as its frame."""
    import pandas as pd

    if not rows:
        return schema.empty_frame()
    return check_frame(
        pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(schema.columns)),
        schema,
    )


def rows_of(frame: pd.DataFrame, schema: FrameSchema) -> list[dict[str, Any]]:
    """The frame's rows, checked, as plain Python values; missing values become None."""
    plain = check_frame(frame, schema).astype(object)
    return [dict(row) for row in plain.where(plain.notna(), None).to_dict("records")]


def json_of(value: BaseModel | dict[str, Any], what: str) -> str:
    """Canonical JSON text of a record.

    Raises InvalidScores for NaN or infinity at any depth (write a missing number as None),
    StoreError for values that JSON cannot hold.
    """
    # Not pydantic's own JSON mode: below `Any` it writes null for NaN.
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    try:
        return json.dumps(
            plain,
            default=_to_jsonable,
            sort_keys=True,
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
        )
    except ValueError as cause:
        raise InvalidScores(
            f"{what} holds NaN or infinity and was not stored. Give None for a missing value."
        ) from cause
    except TypeError as cause:
        raise StoreError(
            f"{what} cannot be written as JSON ({cause}). Use text, numbers, lists and mappings "
            "only."
        ) from cause


def _to_jsonable(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r}")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of at most `size` items.

    >>> list(batches([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
