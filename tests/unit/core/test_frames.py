from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import (
    SCHEMAS,
    FrameSchema,
    check_frame,
    concat,
    flag,
    frame_hash,
    integer,
    json_text,
    number,
    text,
    time,
)  # fmt: skip

KINDS = FrameSchema(
    "kinds",
    {
        "name": text("a text"),
        "note": text("a text or nothing", nullable=True),
        "colour": text("one of two", values=("red", "blue")),
        "n": integer("a count", low=0),
        "rank": integer("a rank or nothing", nullable=True, low=1, high=4),
        "share": number("a share", low=0.0, high=1.0),
        "ok": flag("yes, no or nothing", nullable=True),
        "at": time("a moment"),
        "more": json_text("JSON"),
    },
    key=("name",),
)
EVERY_SCHEMA = pytest.mark.parametrize("schema", SCHEMAS.values(), ids=lambda s: s.name)


def rows(**columns):
    good = {
        "name": ["x", "y"],
        "note": ["hi", None],
        "colour": ["red", "blue"],
        "n": [0, 3],
        "rank": [None, 4],
        "share": [0.0, 1.0],
        "ok": [True, None],
        "at": [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
        "more": ["{}", "[1]"],
    }
    return pd.DataFrame(good | columns)


def test_a_good_frame_comes_back_typed_in_the_schemas_order():
    checked = check_frame(rows()[[*reversed(KINDS.columns)]], KINDS)
    assert list(checked.columns) == list(KINDS.columns)
    assert {name: str(dtype) for name, dtype in checked.dtypes.items()} == {
        name: c.dtype for name, c in KINDS.columns.items()
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": ["x", None]}, "kinds.name: missing value in 1 rows, first row 1"),
        ({"name": ["x", "x"]}, "duplicate keys; row 1 repeats"),
        (
            {"colour": ["red", "green"]},
            r"kinds.colour: value not allowed in 1 rows, first row 1 \('green'\). Allowed: red, "
            r"blue",
        ),
        ({"n": [-1, 0]}, "kinds.n: value below 0"),
        ({"n": [0.5, 1]}, r"kinds.n: not a whole number in 1 rows, first row 0 \(.*0.5"),
        ({"n": [np.inf, 1]}, "kinds.n: not a whole number"),
        ({"rank": [None, 1.5]}, "kinds.rank: not a whole number in 1 rows, first row 1"),
        ({"n": [0, None]}, "kinds.n: missing value"),
        ({"n": ["many", 1]}, "kinds.n: does not convert"),
        ({"rank": [1, 5]}, "kinds.rank: value above 4"),
        ({"share": [np.nan, 1]}, "kinds.share: missing value"),
        ({"share": [np.inf, 1]}, "kinds.share: infinite value"),
        ({"share": [-np.inf, 1]}, "kinds.share: infinite value"),
        ({"share": [0, 1.001]}, "kinds.share: value above 1.0"),
        ({"at": ["soon", "later"]}, "kinds.at: does not convert"),
        ({"more": ["{}", "{half"]}, "kinds.more: invalid JSON in 1 rows, first row 1"),
    ],
)
def test_a_schema_error_names_column_row_and_fix(columns, message):
    with pytest.raises(FrameError, match=message):
        check_frame(rows(**columns), KINDS)


def test_missing_and_unknown_columns_are_named_together():
    with pytest.raises(FrameError, match=r"missing columns \['n'\], unknown columns \['m'\]"):
        check_frame(rows().rename(columns={"n": "m"}), KINDS)


def test_local_times_become_utc():
    at = check_frame(rows(at=["2026-01-01T12:00:00+02:00", "2026-01-01T10:00:00Z"]), KINDS)["at"]
    assert at.dt.tz == UTC or str(at.dt.tz) == "UTC"
    assert at[0] == at[1]


def test_text_columns_keep_text_and_convert_numbers():
    checked = check_frame(rows(name=["naïve 中 🙂\n", "ß"], note=[7, 8]), KINDS)
    assert checked["name"].tolist() == ["naïve 中 🙂\n", "ß"]
    assert checked["note"].tolist() == ["7", "8"]


@EVERY_SCHEMA
def test_empty_frame_passes_and_survives_parquet(schema):
    empty = schema.empty_frame()
    pd.testing.assert_frame_equal(check_frame(empty, schema), empty)
    table = pa.Table.from_pandas(empty, schema=schema.arrow_schema(), preserve_index=False)
    pd.testing.assert_frame_equal(check_frame(table.to_pandas(), schema), empty)


def test_hash_depends_on_values_order_and_columns_not_index():
    frame = check_frame(rows(), KINDS)
    moved = frame.copy()
    moved.index = pd.Index([5, 6])
    assert frame_hash(moved) == frame_hash(frame)
    others = [
        frame.iloc[::-1],
        frame.assign(n=[0, 4]),
        frame.rename(columns={"n": "m"}),
        frame.drop(columns="n"),
    ]
    assert len({frame_hash(f) for f in [frame, *others]}) == 5


def test_join_refuses_duplicate_keys():
    assert len(concat([rows(), rows(name=["z", "w"])], KINDS)) == 4
    with pytest.raises(FrameError, match="duplicate"):
        concat([rows(), rows()], KINDS)
