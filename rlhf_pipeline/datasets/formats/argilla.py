"""Argilla's record format (`records.to_json`): one JSON array of records.

Columns map to the parts of a record: the key to `id`; `prompt`, `completion_a` and `completion_b`
to `fields`, where Argilla calls completions responses; JSON columns `responses` and `suggestions`
to the parts of the same name; all others to `metadata`. Any frame is read back equal, and Argilla
can import a frame of `rlhf_pipeline.datasets.argilla`.
"""

import json
from collections.abc import Iterable
from typing import IO, Any, ClassVar

import pandas as pd

from rlhf_pipeline.datasets.formats.base import plain_columns
from rlhf_pipeline.documents import parse_json
from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.frames import FrameSchema, check_frame

# our column -> Argilla's field
FIELDS = {"prompt": "prompt", "completion_a": "response_a", "completion_b": "response_b"}
ANSWERS = ("responses", "suggestions")


class Argilla:
    """`vectors` is always empty. `.json` may be many things, so this format is chosen by its name
    alone.
    """

    name: ClassVar[str] = "argilla"
    suffix: ClassVar[str] = ".argilla.json"

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        n = 0
        file.write(b"[")
        for batch in batches:
            columns = plain_columns(check_frame(batch, schema), schema)
            for values in zip(*columns.values(), strict=True):
                record = _record(dict(zip(columns, values, strict=True)), schema)
                file.write(b"\n" if n == 0 else b",\n")
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode())
                n += 1
        file.write(b"\n]\n")
        return n

    def read(self, file: IO[bytes], schema: FrameSchema) -> pd.DataFrame:
        try:
            records = parse_json(file.read().decode())
        except ValueError as cause:  # broken JSON and broken UTF-8
            raise FrameError(
                f"{schema.name}: not a JSON array in UTF-8 ({cause}). Write the file again."
            ) from cause
        if not isinstance(records, list):
            raise FrameError(
                f"{schema.name}: a JSON {type(records).__name__}, not an array of records. Write "
                "the file again."
            )
        rows = [_row(record, schema, n) for n, record in enumerate(records, start=1)]
        if not rows:
            return schema.empty_frame()
        # dtype object, because integers with missing values would become floats
        return check_frame(
            pd.DataFrame(
                {
                    name: pd.Series([row[name] for row in rows], dtype=object)
                    for name in schema.columns
                }
            ),
            schema,
        )


def _id_column(schema: FrameSchema) -> str | None:
    return schema.key[0] if len(schema.key) == 1 else None


def _record(row: dict[str, Any], schema: FrameSchema) -> dict[str, Any]:
    id_column = _id_column(schema)
    return {
        "id": row.pop(id_column) if id_column else None,
        "fields": {theirs: row.pop(ours) for ours, theirs in FIELDS.items() if ours in row},
        "suggestions": json.loads(row.pop("suggestions")) if "suggestions" in row else {},
        "responses": json.loads(row.pop("responses")) if "responses" in row else {},
        "vectors": {},
        "metadata": row,
    }


def _row(record: Any, schema: FrameSchema, n: int) -> dict[str, Any]:
    try:
        row = dict(record["metadata"])
        row |= {
            ours: record["fields"][theirs]
            for ours, theirs in FIELDS.items()
            if ours in schema.columns
        }
        row |= {
            name: json.dumps(record[name], ensure_ascii=False)
            for name in ANSWERS
            if name in schema.columns
        }
        id_column = _id_column(schema)
        if id_column:
            row[id_column] = record["id"]
        return {name: row[name] for name in schema.columns}
    except (KeyError, TypeError) as cause:
        raise FrameError(
            f"{schema.name}: record {n} has no {cause}. Write the file again, or correct that "
            "record."
        ) from cause
