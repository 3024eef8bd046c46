"""Argilla's record format (`records.to_json`): one JSON array of records.

Columns map to the parts of a record: `comparison_id` to `id`; `prompt`, `completion_a` and
`completion_b` to `fields`, where Argilla calls completions responses; JSON columns `responses` and
`suggestions` to the parts of the same name; all others to `metadata`. Argilla can import a frame of
`rlhf_pipeline.feedback.datasets.argilla`.
"""

import json
from collections.abc import Iterable
from typing import IO, Any, ClassVar

import pandas as pd

from rlhf_pipeline.core.frames import FrameSchema, check_frame
from rlhf_pipeline.feedback.datasets.formats.base import plain_columns

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
                record = _record(dict(zip(columns, values, strict=True)))
                file.write(b"\n" if n == 0 else b",\n")
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode())
                n += 1
        file.write(b"\n]\n")
        return n


def _record(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row.pop("comparison_id", None),
        "fields": {theirs: row.pop(ours) for ours, theirs in FIELDS.items() if ours in row},
        "suggestions": json.loads(row.pop("suggestions", "{}")),
        "responses": json.loads(row.pop("responses", "{}")),
        "vectors": {},
        "metadata": row,
    }
