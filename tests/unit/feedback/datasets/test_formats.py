"""File formats: nothing is lost in a file, and each has its own form."""

import csv
import io
import json
from datetime import UTC, datetime

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.formats import FORMATS, format_for
from rlhf_pipeline.feedback.datasets.formats.base import plain_columns
from rlhf_pipeline.feedback.datasets.formats.csv import Csv, protect_cell, unprotect_cell
from rlhf_pipeline.feedback.datasets.formats.jsonl import Jsonl
from rlhf_pipeline.feedback.datasets.formats.parquet import Parquet
from rlhf_pipeline.simulation.testing import check_format
from rlhf_pipeline.simulation.testing.formats import (
    HOSTILE_TEXTS,
    ROWS,
    SCHEMA,
    build_frame,
    build_row,
    write_bytes,
)


def as_cell(value):
    """A value as the cells of every reader show it: CSV has only texts, Parquet has times."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("form", [Jsonl(), Csv(), Parquet()], ids=lambda form: form.name)
def test_written_file_is_read_back_equal(form, tmp_path):
    frame = build_frame(*ROWS, *(build_row(text, text) for text in HOSTILE_TEXTS))
    path = tmp_path / f"file{form.suffix}"
    path.write_bytes(write_bytes(form, frame[:2], frame[2:]))
    columns = plain_columns(frame, SCHEMA)
    expected = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = list(open_rows(path))
    assert [row.fault for row in rows] == [None] * len(frame)
    cells = [dict(row.cells) for row in rows]
    if form.name == "csv":
        cells = [{name: unprotect_cell(cell) for name, cell in row.items()} for row in cells]
    assert [{n: as_cell(v) for n, v in row.items()} for row in cells] == [
        {n: as_cell(v) for n, v in row.items()} for row in expected
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_format_conforms_to_the_protocol(name):
    check_format(FORMATS[name])


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_csv_cells_never_start_a_formula(text):
    cell = protect_cell(text)
    assert cell
    assert cell.strip()[:1] not in tuple("=+-@＝＋－＠")
    assert cell[0] not in "\t\r\n"


@given(st.none() | st.text())
@settings(derandomize=True)
def test_formula_protection_is_reversible(text):
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


def test_jsonl_lines_survive_any_line_splitter():
    content = write_bytes(Jsonl(), build_frame(build_row("a\u2028b\x85c\nd", "ü"), build_row()))
    lines = content.decode().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\u2028b\x85c\nd", "x"]
    assert "ü" in lines[0]
    assert json.loads(lines[1])["note"] is None


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
