"""File formats: every one keeps the promises, and each has its own form in the file."""

import csv
import io
import json
from datetime import UTC, datetime

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.datasets.formats import FORMATS, format_for
from rlhf_pipeline.datasets.formats.csv import Csv, protect_cell, unprotect_cell
from rlhf_pipeline.datasets.formats.jsonl import Jsonl
from rlhf_pipeline.datasets.formats.parquet import Parquet
from rlhf_pipeline.errors import ConfigurationError, FrameError
from rlhf_pipeline.testing import check_format
from rlhf_pipeline.testing.formats import (
    HOSTILE_TEXTS,
    SCHEMA,
    build_frame,
    build_row,
    read_bytes,
    write_bytes,
)

WHOLE = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(  # hypothesis adds the zone
    datetime(1900, 1, 1),  # noqa: DTZ001
    datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
FRACTIONS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.one_of(st.sampled_from(HOSTILE_TEXTS), st.text(max_size=30))


ROWS = st.lists(
    st.tuples(
        TEXTS,
        st.none() | TEXTS,
        st.just('{"a": 1}'),
        WHOLE,
        st.none() | WHOLE,
        st.none() | FRACTIONS,
        st.booleans(),
        st.none() | st.booleans(),
        st.none() | MOMENTS,
    ),
    max_size=6,
)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(rows=ROWS, cut=st.integers(0, 6))
def test_any_frame_comes_back_equal_in_whatever_parts_it_was_write_bytes(name, rows, cut):
    frame = build_frame(*rows)
    parts = [part.reset_index(drop=True) for part in (frame[:cut], frame[cut:])]
    pd.testing.assert_frame_equal(
        read_bytes(FORMATS[name](), write_bytes(FORMATS[name](), *parts)), frame, check_exact=True
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_the_promises(name):
    check_format(FORMATS[name])


@pytest.mark.parametrize("name", FORMATS)
def test_the_refusal_of_half_a_file_names_the_fix(name):
    frame = build_frame(*(build_row("für " * 50, f"{i}") for i in range(50)))
    content = write_bytes(FORMATS[name](), frame)
    with pytest.raises(FrameError, match=r"Write|Mend"):
        read_bytes(FORMATS[name](), content[: len(content) // 2 - 3])


@pytest.mark.parametrize("form", [Jsonl(), Csv()], ids=["jsonl", "csv"])
def test_undecodable_bytes_are_refused_by_line(form):
    content = write_bytes(form, build_frame(build_row("one"), build_row("two")))
    with pytest.raises(FrameError, match=r"[Ll]ine \d.*UTF-8"):
        read_bytes(form, content.replace(b"two", b"tw\xff"))


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_a_cell_of_a_csv_never_begins_as_a_formula(text):
    cell = protect_cell(text)
    assert cell
    assert cell.strip()[:1] not in tuple("=+-@＝＋－＠")
    assert cell[0] not in "\t\r\n"
    assert unprotect_cell(cell) == text


@given(st.none() | st.text())
@settings(derandomize=True)
def test_protecting_is_undone_whatever_the_text(text):
    assert unprotect_cell(protect_cell(text)) == text


def test_a_csv_is_read_by_other_programs_as_documented():
    content = write_bytes(
        Csv(), build_frame(build_row("=1+1", ""), build_row('a "b", c\nd', None))
    ).decode()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert [row["text"] for row in rows] == ["'=1+1", 'a "b", c\nd']
    assert [row["note"] for row in rows] == ["'", ""]
    assert content.startswith("text,note,facts,")
    assert content.endswith("\r\n")
    assert pd.read_csv(io.StringIO(content))["text"].tolist() == ["'=1+1", 'a "b", c\nd']


def test_a_csv_with_a_byte_order_mark_is_read():
    content = write_bytes(Csv(), build_frame(build_row("x")))
    pd.testing.assert_frame_equal(
        read_bytes(Csv(), b"\xef\xbb\xbf" + content), read_bytes(Csv(), content)
    )


def test_another_delimiter_is_identified():
    with pytest.raises(FrameError, match="commas"):
        read_bytes(Csv(), write_bytes(Csv(), build_frame(build_row())).replace(b",", b";"))


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (b"{}", b"{},", r"line 2 has 10 cells"),
        (b"true", b"yes", r"is_late: 'yes' in line 2 is no bool"),
        (b"{},1", b"{},one", r"'one' in line 2"),
    ],
)
def test_a_cell_that_does_not_convert_is_named_by_line_and_column(good, bad, message):
    with pytest.raises(FrameError, match=message):
        read_bytes(Csv(), write_bytes(Csv(), build_frame(build_row())).replace(good, bad, 1))


def test_a_jsonl_line_is_one_object_for_any_line_splitter():
    content = write_bytes(Jsonl(), build_frame(build_row("a\u2028b\x85c\nd", "ü"), build_row()))
    lines = content.decode().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\u2028b\x85c\nd", "x"]
    assert "ü" in lines[0]
    assert json.loads(lines[1])["note"] is None


@pytest.mark.parametrize(
    ("line", "message"), [("[1]", "Line 2 is a JSON list"), ("{", "Line 2 is not JSON")]
)
def test_a_line_without_an_object_is_named(line, message):
    content = write_bytes(Jsonl(), build_frame(build_row())) + line.encode()
    with pytest.raises(FrameError, match=message):
        read_bytes(Jsonl(), content)


def test_parquet_has_the_schemas_types_and_name_even_without_rows():
    for content in (write_bytes(Parquet()), write_bytes(Parquet(), build_frame(build_row()))):
        file = pq.ParquetFile(io.BytesIO(content))
        assert file.schema_arrow.equals(SCHEMA.arrow_schema())
        assert file.schema_arrow.metadata[b"schema"] == b"sample"


def test_format_is_chosen_by_name_then_suffix_then_jsonl(tmp_path):
    assert isinstance(format_for(), Jsonl)
    assert isinstance(format_for(tmp_path / "stdout"), Jsonl)
    assert isinstance(format_for(tmp_path / "x.CSV"), Csv)
    assert isinstance(format_for(tmp_path / "x.txt", "parquet"), Parquet)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("x.xlsx",), r"\.xlsx.*\.jsonl.*\.csv.*\.parquet.*--format"),
        ((None, "xml"), "xml.*jsonl, csv"),
    ],
)
def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path, arguments, named):
    path, *name = arguments
    with pytest.raises(ConfigurationError, match=named):
        format_for(path and tmp_path / path, *name)
