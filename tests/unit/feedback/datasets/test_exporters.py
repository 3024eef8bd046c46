"""Exports of data sets: golden files, the readers they are for, and what each format refuses."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from upath import UPath

from rlhf_pipeline.core.curation import DatasetQuery, DatasetVersion
from rlhf_pipeline.core.errors import ConfigurationError, DatasetError
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS, write_export
from rlhf_pipeline.feedback.datasets.exporters.base import LineExporter
from rlhf_pipeline.feedback.datasets.exporters.files import encode_export, name_export
from rlhf_pipeline.feedback.datasets.formats.csv import unprotect_cell
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import PreferenceFile, ReadOptions
from rlhf_pipeline.feedback.datasets.quality import measure_quality
from tests.dataset_rows import build_dataset_rows

GOLDEN = Path(__file__).parent / "golden"
AT = datetime(2026, 3, 2, tzinfo=UTC)
LINES = [name for name, member in EXPORTERS.items() if issubclass(member, LineExporter)]
COLUMNS = {
    "preference": {},
    "sft": {"rejected": None, "strength": None},
    "unpaired": {"rejected": None, "strength": None, "label": [True, False] * 16},
}


def build_set(kind, n=32):
    """Rows of which one is a conversation about a document, and one has characters that files must
    escape.
    """
    rows = build_dataset_rows(n, **{k: v[:n] if v else v for k, v in COLUMNS[kind].items()})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello. Which town?"},
        {"role": "document", "content": "The map, page 2."},
        {"role": "user", "content": "Town 0"},
    ]
    rows.loc[0, "prompt"] = json.dumps(messages)
    rows.loc[1, "completion"] = 'Züri says "grüezi"\u2028\n✓'
    return rows


def cases():
    return [(name, kind) for name in LINES for kind in EXPORTERS[name].types]


def read_columns(path):
    from datasets import load_dataset  # the reader of most trainers

    suffix = {".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}[path.suffix]
    return load_dataset(
        suffix, data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    )


def as_cell(value):
    """A value as a cell of CSV."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_line_is_as_in_the_golden_file(name, kind):
    content = encode_export(EXPORTERS[name](), build_set(kind), kind)
    golden = (GOLDEN / f"{kind}.{name}.jsonl").read_bytes()
    assert b"".join(content.splitlines(keepends=True)[:3]) == golden


@pytest.mark.parametrize(("name", "kind"), cases())
def test_an_export_is_read_by_the_datasets_library(tmp_path, name, kind):
    exporter = EXPORTERS[name]()
    path = tmp_path / f"file{exporter.suffix}"
    path.write_bytes(encode_export(exporter, build_set(kind), kind))
    rows = read_columns(path)
    assert len(rows) == 32
    text = json.dumps(rows[0], ensure_ascii=False)
    assert "The map, page 2." in text
    assert "Town 0 lies by river 0." in text
    assert "grüezi" in json.dumps(rows[1], ensure_ascii=False)


@pytest.mark.parametrize("name", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_table_is_read_back_equal(tmp_path, name, kind):
    exporter, rows = EXPORTERS[name](), build_set(kind)
    path = tmp_path / f"file{exporter.suffix}"
    path.write_bytes(encode_export(exporter, rows, kind))
    cells = [dict(row.cells) for row in open_rows(path)]
    if name == "csv":
        cells = [{key: unprotect_cell(cell) for key, cell in row.items()} for row in cells]
    expected = rows.astype(object).where(rows.notna(), None).to_dict("records")
    if name == "csv":
        expected = [{key: as_cell(value) for key, value in row.items()} for row in expected]
    assert cells == expected


@pytest.mark.parametrize(
    ("name", "kind", "values", "fault"),
    [
        ("trl", "preference", {"rejected": "Town 3 lies by river 3."}, "are equal"),
        ("trl", "sft", {"completion": " "}, "completion is blank"),
        ("trl_conversational", "preference", {"rejected": " "}, "rejected is blank"),
        ("openai", "sft", {"completion": ""}, "the assistant message is blank"),
        ("openai_preference", "preference", {"prompt": " "}, "input: the user message is blank"),
        ("openai_preference", "preference", {"rejected": ""}, "non_preferred_output: the assis"),
        ("openai_preference", "preference", {"rejected": "Town 3 lies by river 3."}, "are equal"),
        ("bedrock", "sft", {"prompt": ""}, "the user message is blank"),
        ("anthropic", "sft", {"prompt": "\n"}, "last message is blank"),
        ("anthropic", "sft", {"completion": "\t"}, "output is blank"),
    ],
)
def test_a_row_that_its_reader_refuses_is_named(name, kind, values, fault):
    rows = build_set(kind)
    for column, value in values.items():
        rows.loc[3, column] = value
    with pytest.raises(DatasetError, match=rf"refuses 1 of 32 rows\. comparison:c3: .*{fault}"):
        encode_export(EXPORTERS[name](), rows, kind)


USER, BOT = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("name", "line", "fault"),
    [
        ("openai", {"messages": []}, "no messages"),
        ("openai", {"messages": [BOT, USER]}, "last message"),
        ("openai", {"messages": [{"role": "robot", "content": "x"}, BOT]}, "'robot'"),
        ("openai_preference", {"input": {"messages": [USER]}}, "preferred_output: has no"),
        ("bedrock", {"messages": [USER, BOT], "label": 1}, "unknown key 'label'"),
        ("bedrock", {"messages": [BOT, USER]}, "alternate"),
        ("bedrock", {"messages": [USER, BOT, USER]}, "alternate"),
        ("bedrock", {"messages": [{"role": "system", "content": "s"}, BOT]}, "'system'"),
        ("anthropic", {"input": "Hello", "output": "x"}, "must hold"),
    ],
)
def test_a_line_against_the_rules_of_the_provider_is_refused(name, line, fault):
    assert fault in EXPORTERS[name]().find_fault(line)


@pytest.mark.parametrize(
    ("name", "n"), [("openai", 9), ("openai_preference", 9), ("bedrock", 31), ("bedrock", 10_001)]
)
def test_too_few_or_many_rows_are_refused(name, n):
    rows = build_dataset_rows(n)
    with pytest.raises(DatasetError, match=rf"has {n:,} rows"):
        encode_export(EXPORTERS[name](), rows, "preference")


@pytest.mark.parametrize("name", ["openai", "openai_preference", "bedrock", "anthropic"])
def test_a_type_that_a_format_cannot_hold_is_refused(name):
    with pytest.raises(DatasetError, match="not unpaired"):
        encode_export(EXPORTERS[name](), build_set("unpaired"), "unpaired")


def build_version(rows):
    return DatasetVersion(
        dataset_id=1,
        version=3,
        content_hash="0" * 64,
        n_rows=len(rows),
        query=DatasetQuery(),
        quality=measure_quality(rows, "preference"),
        frozen_by="u1",
        frozen_at=AT,
    )


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_export_has_a_manifest_with_its_hash(tmp_path, is_remote):
    folder = "memory://exports/sets" if is_remote else tmp_path / "sets"
    rows, exporter = build_set("preference"), EXPORTERS["trl"]()
    export = write_export(
        folder, "Support Q4", build_version(rows), "preference", rows, exporter, AT
    )
    path = UPath(export.url)
    assert path.name == "support-q4-3.trl.jsonl"
    content = path.read_bytes()
    assert content == encode_export(exporter, rows, "preference")
    assert export.sha256 == hashlib.sha256(content).hexdigest()
    manifest = json.loads(path.with_name(f"{path.name}.manifest.json").read_text())
    assert manifest["dataset"] == "Support Q4"
    assert manifest["export"]["sha256"] == export.sha256
    assert manifest["version"]["content_hash"] == "0" * 64


def test_an_export_is_not_replaced_by_one_of_a_like_name(tmp_path):
    rows, exporter = build_set("preference"), EXPORTERS["trl"]()

    def export(name, of):
        return write_export(tmp_path, name, build_version(of), "preference", of, exporter, AT)

    first = export("a/b", rows)
    assert export("a/b", rows).sha256 == first.sha256
    with pytest.raises(DatasetError, match="holds another export"):
        export("a-b", rows.iloc[1:].reset_index(drop=True))
    assert hashlib.sha256(UPath(first.url).read_bytes()).hexdigest() == first.sha256


@pytest.mark.parametrize("address", ["s3:///sets", "s3://no bucket", "{}/file"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, address):
    folder = address.format(tmp_path)
    (tmp_path / "file").write_text("no folder")
    rows, exporter = build_set("preference"), EXPORTERS["trl"]()
    with pytest.raises(
        (DatasetError, ConfigurationError), match=r"support-q4-3.*(?:Check|Give|Make)"
    ):
        write_export(folder, "Support Q4", build_version(rows), "preference", rows, exporter, AT)


def test_file_names_hold_only_letters_and_digits():
    assert name_export("../../etc: Ünï", 1, EXPORTERS["csv"]()) == "etc-ünï-1.csv.csv"
    assert name_export("…", 1, EXPORTERS["trl"]()) == "dataset-1.trl.jsonl"


def read_back(tmp_path, name, kind):
    """Rows of an export as `rlhf import preferences` reads them: prompt, preferred, other."""
    exporter = EXPORTERS[name]()
    path = tmp_path / f"file{exporter.suffix}"
    path.write_bytes(encode_export(exporter, build_set(kind), kind))
    file = PreferenceFile(open_rows(path), path.name, ColumnMapping(), ReadOptions())
    votes = [row.cells for row in file.votes]
    assert len(list(file.pairs)) == len(votes)
    sides = [("completion_a", "completion_b")[:: 1 if v["choice"] == "a" else -1] for v in votes]
    return [
        (v["prompt"], v[better], v[worse]) for v, (better, worse) in zip(votes, sides, strict=True)
    ]


@pytest.mark.parametrize("name", ["jsonl", "parquet", "csv"])
def test_exported_preferences_are_imported_unchanged(tmp_path, name):
    rows = build_set("preference")[["prompt", "completion", "rejected"]]
    assert read_back(tmp_path, name, "preference") == list(map(tuple, rows.to_numpy()))


@pytest.mark.parametrize("name", ["trl", "trl_conversational", "openai_preference"])
def test_preferences_for_trainers_are_imported_with_their_texts(tmp_path, name):
    rows = build_set("preference")[["prompt", "completion", "rejected"]]
    pairs = read_back(tmp_path, name, "preference")
    # Trainers have no role for documents, so the prompt of the first row is not as it was
    assert pairs[0][1:] == tuple(rows.loc[0, ["completion", "rejected"]])
    assert pairs[1:] == list(map(tuple, rows.to_numpy()[1:]))


def test_exported_unpaired_rows_are_recognised(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_bytes(encode_export(EXPORTERS["jsonl"](), build_set("unpaired"), "unpaired"))
    file = PreferenceFile(open_rows(path), path.name, ColumnMapping(), ReadOptions())
    assert file.title.startswith("unpaired")


@pytest.mark.parametrize(("name", "most"), [("openai", 65_536), ("bedrock", 32_000)])
def test_lines_beyond_the_tokens_of_a_reader_are_named(tmp_path, name, most):
    rows = build_dataset_rows(40)
    rows.loc[[3, 7], "completion"] = "word " * most
    export = write_export(
        tmp_path, "x", build_version(rows), "preference", rows, EXPORTERS[name](), AT
    )
    [warning] = export.warnings
    assert warning.startswith(f"2 of its lines may be longer than the {most:,} tokens")
    assert warning.endswith("4 bytes a token: 4, 8.")
    short = write_export(
        tmp_path, "y", build_version(rows), "preference", rows[:3], EXPORTERS["trl"](), AT
    )
    assert short.warnings == ()


def test_a_file_larger_than_openai_takes_is_refused(monkeypatch):
    monkeypatch.setattr(EXPORTERS["openai"], "most_bytes", 100)
    with pytest.raises(DatasetError, match="OpenAI chat takes 100"):
        EXPORTERS["openai"]().export(build_dataset_rows(10), "preference")
