"""What every member of the mapping of file formats keeps, and what each is in the file."""

import csv
import gc
import io
import json
import weakref
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
from rlhf_pipeline.frames import (
    FrameSchema,
    check_frame,
    flag,
    integer,
    json_text,
    number,
    text,
    time,
)

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
HOSTILE = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1+1",
    "\u00a0=1",
    "＝1",
    "＋1",
    "－1",
    "＠1",
    "'",
    "''",
    "'=1",
    "'plain",
    '=HYPERLINK("http://evil";"x")',
    "=cmd|' /C calc'!A0",
    "",
    " ",
    "NA",
    "null",
    "None",
    "NaN",
    "true",
    "1e5",
    "007",
    "a,b;c\td",
    'say "hi"',
    "two\nlines",
    "two\r\nlines",
    "old\rmac",
    "\n",
    "\r\n",
    "trailing\n",
    "\u2028",
    "\u2029x",
    "\x85",
    "\x0b\x0c\x1c",
    "nul\x00inside",
    "\ufeffbom",
    "für dich ✓ 日本語 🎉",
    "\\n",
    "\\",
    '"',
    '""',
]
WHOLE = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(  # hypothesis adds the zone
    datetime(1900, 1, 1),  # noqa: DTZ001
    datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
FRACTIONS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))


def frame_of(*rows):
    return check_frame(pd.DataFrame(rows, columns=list(SCHEMA.columns), dtype=object), SCHEMA)


def plain_row(text="x", note=None):
    return (text, note, "{}", 1, None, None, True, None, None)


def written(form, *frames, schema=SCHEMA):
    file = io.BytesIO()
    n = form.write(iter(frames), schema, file)
    assert n == sum(map(len, frames))
    assert not file.closed
    return file.getvalue()


def read(form, content, schema=SCHEMA):
    return form.read(io.BytesIO(content), schema)


@pytest.fixture(params=list(FORMATS))
def form(request):
    return FORMATS[request.param]()


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
def test_any_frame_comes_back_equal_in_whatever_parts_it_was_written(name, rows, cut):
    frame = frame_of(*rows)
    parts = [part.reset_index(drop=True) for part in (frame[:cut], frame[cut:])]
    pd.testing.assert_frame_equal(
        read(FORMATS[name](), written(FORMATS[name](), *parts)), frame, check_exact=True
    )


def test_texts_that_break_other_files_come_back_to_the_character(form):
    frame = frame_of(*(plain_row(text, text) for text in HOSTILE))
    back = read(form, written(form, frame))
    assert back["text"].tolist() == HOSTILE
    assert back["note"].tolist() == HOSTILE


def test_a_text_of_ten_million_characters_is_a_text(form):
    frame = frame_of(plain_row("x,\n" * 3_333_333))
    pd.testing.assert_frame_equal(read(form, written(form, frame)), frame)


def test_a_missing_text_is_not_an_empty_one(form):
    back = read(form, written(form, frame_of(plain_row(note=None), plain_row(note=""))))
    assert back["note"].isna().tolist() == [True, False]
    assert back["note"][1] == ""


def test_no_frame_at_all_is_a_file_that_reads_as_the_empty_frame(form):
    for content in (written(form), written(form, SCHEMA.empty_frame())):
        pd.testing.assert_frame_equal(read(form, content), SCHEMA.empty_frame())


def test_the_same_frames_are_the_same_bytes(form):
    frame = frame_of(plain_row("a"), plain_row("b"))
    assert written(form, frame) == written(form, frame)


def test_a_frame_that_breaks_its_schema_is_refused(form):
    with pytest.raises(FrameError, match="missing columns"):
        form.write([pd.DataFrame({"text": ["x"]})], SCHEMA, io.BytesIO())


def test_one_frame_is_held_at_a_time(form):
    alive: list[weakref.ref] = []

    def batches():
        for i in range(3):
            gc.collect(1)  # the one before is young
            # the one just written may still have a name in the writer
            assert sum(ref() is not None for ref in alive) <= 1
            batch = frame_of(plain_row(str(i)))
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    form.write(batches(), SCHEMA, io.BytesIO())
    assert len(alive) == 3


def test_half_a_file_is_refused_and_the_cure_named(form):
    content = written(form, frame_of(*(plain_row("für " * 50, f"{i}") for i in range(50))))
    with pytest.raises(FrameError, match=r"Write|Mend"):
        read(form, content[: len(content) // 2 - 3])


@pytest.mark.parametrize("form", [Jsonl(), Csv()], ids=["jsonl", "csv"])
def test_bytes_that_are_no_text_are_refused_by_line(form):
    content = written(form, frame_of(plain_row("one"), plain_row("two")))
    with pytest.raises(FrameError, match=r"[Ll]ine \d.*UTF-8"):
        read(form, content.replace(b"two", b"tw\xff"))


@pytest.mark.parametrize("text", HOSTILE)
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


def test_a_csv_is_read_by_others_as_it_is_described():
    content = written(
        Csv(), frame_of(plain_row("=1+1", ""), plain_row('a "b", c\nd', None))
    ).decode()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert [row["text"] for row in rows] == ["'=1+1", 'a "b", c\nd']
    assert [row["note"] for row in rows] == ["'", ""]
    assert content.startswith("text,note,facts,")
    assert content.endswith("\r\n")
    assert pd.read_csv(io.StringIO(content))["text"].tolist() == ["'=1+1", 'a "b", c\nd']


def test_a_csv_that_a_spreadsheet_saved_with_a_mark_of_its_encoding_is_read():
    content = written(Csv(), frame_of(plain_row("x")))
    pd.testing.assert_frame_equal(read(Csv(), b"\xef\xbb\xbf" + content), read(Csv(), content))


def test_another_delimiter_is_named_as_what_it_is():
    with pytest.raises(FrameError, match="commas"):
        read(Csv(), written(Csv(), frame_of(plain_row())).replace(b",", b";"))


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
        read(Csv(), written(Csv(), frame_of(plain_row())).replace(good, bad, 1))


def test_a_line_of_jsonl_is_one_object_whoever_splits_the_lines():
    content = written(Jsonl(), frame_of(plain_row("a\u2028b\x85c\nd", "ü"), plain_row()))
    lines = content.decode().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\u2028b\x85c\nd", "x"]
    assert "ü" in lines[0]
    assert json.loads(lines[1])["note"] is None


@pytest.mark.parametrize(
    ("line", "message"), [("[1]", "Line 2 is a JSON list"), ("{", "Line 2 is no JSON")]
)
def test_a_line_that_is_no_object_is_named(line, message):
    content = written(Jsonl(), frame_of(plain_row())) + line.encode()
    with pytest.raises(FrameError, match=message):
        read(Jsonl(), content)


def test_parquet_has_the_types_of_the_schema_and_names_it_even_without_rows():
    for content in (written(Parquet()), written(Parquet(), frame_of(plain_row()))):
        file = pq.ParquetFile(io.BytesIO(content))
        assert file.schema_arrow.equals(SCHEMA.arrow_schema())
        assert file.schema_arrow.metadata[b"schema"] == b"sample"


def test_a_format_is_found_by_name_before_suffix_and_is_jsonl_without_either(tmp_path):
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
