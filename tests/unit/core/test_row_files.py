"""Files of rows: faults are reported by line; files of another kind are refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import FileRow, chunks, open_rows


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(path, **options):
    return [(row.line, row.cells) for row in open_rows(path, **options) if row.fault is None]


def faults(path, **options):
    return [(row.line, row.fault) for row in open_rows(path, **options) if row.fault is not None]


def test_the_same_rows_come_out_of_every_kind_of_file(tmp_path):
    rows = [{"a": 'x, "y"\nz', "b": "ü"}, {"a": "", "b": "2"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "f.parquet")
    write(tmp_path / "f.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(tmp_path / "f.json", json.dumps(rows, indent=1))
    write(tmp_path / "f.csv", 'a,b\r\n"x, ""y""\nz",ü\r\n,2\r\n')
    write(tmp_path / "f.tsv", 'a\tb\n"x, ""y""\nz"\tü\n\t2\n')
    for kind in ("parquet", "jsonl", "json", "csv", "tsv"):
        file = open_rows(tmp_path / f"f.{kind}")
        assert file.columns == ["a", "b"], kind
        assert [row.cells for row in file] == rows, kind
        assert file.position > 0


def test_line_numbers_are_those_of_the_file(tmp_path):
    path = write(tmp_path / "f.csv", 'a,b\n"one\ntwo",1\n\n3,4\n5\n')
    assert [line for line, _ in rows(path)] == [2, 5]
    assert faults(path) == [
        (6, "1 cells, the header has 2. Quote cells that hold ',' or a line break")
    ]


def test_other_delimiters_can_be_chosen(tmp_path):
    path = write(tmp_path / "f.csv", "a;b\n1;2\n")
    assert rows(path, delimiter=";") == [(2, {"a": "1", "b": "2"})]
    with pytest.raises(DatasetError, match="give one character"):
        open_rows(path, delimiter=";;")
    with pytest.raises(DatasetError, match=r"is for \.csv and \.tsv"):
        open_rows(write(tmp_path / "f.jsonl", "{}"), delimiter=";")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a": ', "no JSON"),
        ("[1]", "[1] is not an object"),
        ("null", "null is not an object"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_line_without_an_object_is_rejected_alone(tmp_path, line, why):
    path = write(tmp_path / "f.jsonl", f'{{"a": "1"}}\n\n{line}\n{{"a": "2"}}\n')
    assert [number for number, _ in rows(path)] == [1, 4]
    ((number, fault),) = faults(path)
    assert number == 3
    assert why in fault


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("f.csv", b"", "is empty: 0 bytes"),
        ("f.csv", b"PK\x03\x04rest", "is a spreadsheet or zip archive despite its name"),
        ("f.jsonl", b"\x1f\x8brest", "is gzip"),
        ("f.xlsx", b"PK\x03\x04rest", "is a spreadsheet or zip archive\\. Unpack"),
        ("f.xls", b"\xd0\xcf\x11\xe0\0\0", "is an old spreadsheet"),
        ("f.feather", b"ARROW1\0\0", "is an Arrow file"),
        ("f.jsonl.zst", b"\x28\xb5\x2f\xfd\0", "is compressed by Zstandard"),
        ("f.csv", b"PAR1rest", "is Parquet despite"),
        ("f.xlsx", b"PK\x03\x04rest", "spreadsheet"),
        ("f.txt", b"hello", "unknown kind '.txt'. Give .parquet, .jsonl"),
        ("f.csv", b"a,a\n1,2\n", "come twice in the header"),
        ("f.csv", b"\n\n", "line 1: no header"),
        ("f.parquet", b"a,b\n1,2\n", "truncated or not a Parquet file"),
    ],
)
def test_a_file_without_rows_is_refused_with_a_fix(tmp_path, name, content, why):
    with pytest.raises(DatasetError, match=why):
        open_rows(write(tmp_path / name, content))


def test_batches_are_bounded_by_rows_and_by_bytes():
    small = [FileRow(i, {"a": "x"}) for i in range(5)]
    assert [len(batch) for batch in chunks(small, max_rows=2)] == [2, 2, 1]
    large = [FileRow(i, {"a": "x" * 1000}) for i in range(3)]
    assert [len(batch) for batch in chunks(large, max_bytes=1600)] == [1, 1, 1]
    assert list(chunks([])) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ('{"a": 1e400}', "1e400 is not a finite number"),
        ('{"a": NaN}', "NaN is not a finite number"),
    ],
)
def test_rows_with_duplicate_keys_or_infinities_are_rejected(tmp_path, line, message):
    path = write(tmp_path / "f.jsonl", f'{{"a": 1}}\n{line}\n{{"a": 3}}\n')
    assert rows(path) == [(1, {"a": 1}), (3, {"a": 3})]
    ((number, fault),) = faults(path)
    assert number == 2
    assert message in fault
    with pytest.raises(DatasetError, match=f"line 2: .*{message}"):
        open_rows(write(tmp_path / "f.json", f'[{{"a": 1}},\n{line}]'))


@pytest.mark.parametrize("order", ["LE", "BE"])
def test_utf_16_without_a_mark_is_named(tmp_path, order):
    path = tmp_path / "f.jsonl"
    path.write_bytes('{"prompt": "p"}\n'.encode(f"utf-16-{order}"))
    with pytest.raises(DatasetError, match=f"is UTF-16.*-f UTF-16{order}"):
        open_rows(path)


@pytest.mark.parametrize(
    ("text", "further"),
    [
        ('{"train": [{"a": 1}], "test": [{"a": 2}]}', "further lists: test"),
        ('[{"a": 1}]\n[{"a": 2}]', r"\[\{"),
        ('{"data": [{"a": 1}], "more": [{"a": 2}', "more"),
    ],
)
def test_rows_behind_the_first_list_are_not_lost(tmp_path, text, further):
    with pytest.raises(DatasetError, match=f"goes on after its first list .*{further}"):
        open_rows(write(tmp_path / "f.json", text))


def test_what_stands_beside_the_rows_is_noted(tmp_path):
    file = open_rows(write(tmp_path / "f.json", '{"data": [{"a": 1}], "license": {"name": "MIT"}}'))
    assert [row.cells for row in file] == [{"a": 1}]
    assert file.notes == ["left out beside the rows: license"]


def test_empty_columns_and_rows_of_a_spreadsheet_are_no_fault(tmp_path):
    file = open_rows(write(tmp_path / "f.csv", "a,b,,\n1,2,,\n,,,\n3,4,,\n"))
    assert file.columns == ["a", "b", "column 3", "column 4"]
    assert [(row.line, row.cells["a"], row.fault) for row in file] == [
        (2, "1", None),
        (4, "3", None),
    ]


@pytest.mark.parametrize("order", ["le", "be"])
def test_a_csv_file_in_utf_16_without_a_mark_is_read(tmp_path, order):
    path = tmp_path / "f.csv"
    path.write_bytes("a,b\nü,2\n".encode(f"utf-16-{order}"))
    file = open_rows(path, encoding=None)
    assert [row.cells for row in file] == [{"a": "ü", "b": "2"}]
    assert file.notes == ["read as UTF-16, not UTF-8 (--encoding names another)"]


def test_objects_in_a_list_may_have_a_key_that_is_always_null(tmp_path):
    cells = {
        "chat": [{"content": "Hi", "tool_calls": None}, {"content": "Yes", "tool_calls": None}]
    }
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_pylist([cells, cells]), path)
    assert [row.cells for row in open_rows(path)] == [cells, cells]
