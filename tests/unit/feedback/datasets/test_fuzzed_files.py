"""Damaged preference files: what is stored stands in the file as it is, or the report says so.

200 files by default; `FUZZED_FILES=2000` reads more.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_pipeline.core.conversations import read_messages
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.comparisons import ComparisonImport
from rlhf_pipeline.feedback.datasets.dry_run import DryRun
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import PreferenceFile, ReadOptions
from rlhf_pipeline.feedback.datasets.rejects import Rejects
from rlhf_pipeline.store.comparisons import pair_key

N_FILES = int(os.environ.get("FUZZED_FILES", "200"))
N_ROWS = 6
ODD = ("", " ", "NA", "null", "1.0", "[1, 2]", "['x']", "é", "“quoted”", 'a "b", c;d', "two\nlines",
       "\u2028", "=1+1", "Human: x", "🎉", "\ttab", "e\u0301", "{}", "sep=;")  # fmt: skip
REPORTED = ("common beginning", "later turns", "missing (null)")  # in notes on changed texts
SPEAKER = re.compile(r"^(?:Human|Assistant):", re.MULTILINE)
Row = dict[str, Any]


def message(role: str, text: str) -> Row:
    return {"role": role, "content": text}


def human(*texts: str) -> str:
    return "".join(f"\n\n{('Human', 'Assistant')[i % 2]}: {text}" for i, text in enumerate(texts))


# Shape -> a row of the texts: prompt, better and worse completion.
SHAPES: dict[str, Callable[[str, str, str], Row]] = {
    "trl": lambda p, x, y: {"prompt": p, "chosen": x, "rejected": y},
    "implicit": lambda p, x, y: {"chosen": f"{p}? {x}", "rejected": f"{p}? {y}"},
    "hh-rlhf": lambda p, x, y: {"chosen": human(p, x), "rejected": human(p, y)},
    "ultrafeedback": lambda p, x, y: {
        "prompt": p,
        "chosen": [message("user", p), message("assistant", x)],
        "rejected": [message("user", p), message("assistant", y)],
        "score_chosen": 2.0,
    },
    "alpaca": lambda p, x, y: {"instruction": p, "input": "", "chosen": x, "rejected": y},
    "helpsteer": lambda p, x, y: {
        "prompt": p, "response_1": x, "response_2": y, "preference_strength": -2
    },
    "arena": lambda p, x, y: {
        "model_a": "m", "model_b": "n", "prompt": json.dumps([p]), "response_a": json.dumps([x]),
        "response_b": json.dumps([y]), "winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0,
    },
    "unpaired": lambda p, x, y: {"prompt": p, "completion": x, "label": True},
    "answers": lambda p, x, y: {"prompt": p, "answers": [x, y], "ranks": [1, 2]},
    "label-studio": lambda p, x, y: {
        "id": p, "prompt": p, "answer1": x, "answer2": y, "annotator": 1, "annotation_id": p,
        "lead_time": 2.0, "comparison": "left",
    },
}  # fmt: skip


class EmptyStore:
    """The store of a new home."""

    def with_source_ids(self, ids: Any) -> dict[str, str]:
        return {}

    with_pair_keys = find_known_keys = find_votes = with_source_ids

    def find_fields(self, ids: Any, fields: Any) -> dict[str, Row]:
        return {}

    def splits(self, only_given: bool) -> list[Any]:
        return []


def make_rows(rng: random.Random, shape: str) -> list[Row]:
    rows = []
    for n in range(N_ROWS):
        texts = [f"{kind}{n}#{rng.choice(ODD)}" for kind in "pxy"]
        rows.append(SHAPES[shape](*texts))
    if shape == "unpaired":
        rows += [
            {**row, "completion": row["completion"].replace("x", "y", 1), "label": False}
            for row in rows
        ]
    return rows


def damage(rng: random.Random, rows: list[Row]) -> None:
    """Change columns, cells and types in place."""
    for _ in range(rng.randrange(4)):
        row, column = rng.choice(rows), rng.choice(sorted(rows[0]))
        kind = rng.randrange(6)
        if kind == 0:
            for other in rows:
                other["new"] = rng.choice(("text", 7, None))
        elif kind == 1:
            for other in rows:
                other.pop(column, None)
        elif kind == 2:
            for other in rows:
                other[f"{column} "] = other.pop(column, None)
        else:
            values = (None, 7, 2.5, True, [], ["a"], {"a": 1}, "", "[]", "[null]", "NaN", "9" * 40)
            row[column] = rng.choice(values)


def write_file(rng: random.Random, folder: Path, rows: list[Row]) -> Path:
    """The rows as a file of any kind and encoding."""
    kind = rng.choice(("jsonl", "json", "pretty", "data", "csv", "csv", "parquet", "gz"))
    if kind == "parquet":
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with contextlib.suppress(pa.ArrowException):  # for cells of several types
            table = pa.Table.from_pylist([{c: row.get(c) for c in columns} for row in rows])
            pq.write_table(table, folder / "f.parquet")
            return folder / "f.parquet"
    if kind == "csv":
        return write_csv(rng, folder / "f.csv", rows)
    lines = "".join(f"{json.dumps(row, ensure_ascii=rng.random() < 0.5)}\n" for row in rows)
    texts = {
        "jsonl": ("f.jsonl", lines),
        "json": ("f.json", json.dumps(rows)),
        "pretty": ("f.jsonl", json.dumps(rows, indent=1)),
        "data": ("f.json", json.dumps({"version": 1, "data": rows})),
        "gz": ("f.jsonl.gz", lines),
        "parquet": ("f.ndjson", lines),
    }
    name, text = texts[kind]
    raw = text.encode("utf-8-sig" if rng.random() < 0.2 else "utf-8")
    (folder / name).write_bytes(gzip.compress(raw) if kind == "gz" else raw)
    return folder / name


def write_csv(rng: random.Random, path: Path, rows: list[Row]) -> Path:
    text = io.StringIO(newline="")
    delimiter = rng.choice(",;\t|")
    if rng.random() < 0.2:
        text.write(f"sep={delimiter}\r\n")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, delimiter=delimiter, lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()}
        )
    encoding = rng.choice(("utf-8", "utf-8-sig", "utf-16", "cp1252"))
    try:
        path.write_bytes(text.getvalue().encode(encoding))
    except UnicodeEncodeError:
        path.write_bytes(text.getvalue().encode())
    return path


def list_texts(value: Any) -> Iterator[str]:
    """Every text in a row, those in JSON and transcripts too, without whitespace at the ends."""
    if isinstance(value, dict | list):
        yield json.dumps(value)  # as a cell of a CSV file
    if isinstance(value, dict):
        for inner in value.values():
            yield from list_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from list_texts(inner)
    elif value is not None:
        text = str(value)
        yield text.strip()
        yield from (part.strip() for part in SPEAKER.split(text))
        if text.strip().startswith("["):
            try:
                yield from list_texts(json.loads(text))
            except ValueError:
                return


def read_file(path: Path, folder: Path) -> tuple[list[Row], PreferenceFile, int]:
    """What would be stored of the pairs, the file with its notes, and the number of rows that the
    report counts.
    """
    rows = open_rows(path, encoding=None)
    file = PreferenceFile(rows, path.name, ColumnMapping(), ReadOptions())
    dry = DryRun(EmptyStore(), EmptyStore())
    with Rejects(folder / path.name, folder) as rejects:
        work = ComparisonImport(
            dry, dry, pair_key, rejects, datetime(2026, 1, 1, tzinfo=UTC), match_texts=True
        )
        if file.pairs is not None:
            work.run(file.pairs, file.names, path.name)
    return list(dry.rows.values()), file, work.counts.total + sum(file.notes.values())


@pytest.mark.parametrize("part", range(10))
def test_stored_texts_are_those_of_the_file(tmp_path, part):
    """Each text carries its row's number, so that no text comes from another row."""
    n_stored = 0
    for seed in range(part, N_FILES, 10):
        rng = random.Random(seed)
        rows = make_rows(rng, rng.choice(sorted(SHAPES)))
        damage(rng, rows)
        path = write_file(rng, tmp_path, rows)
        try:
            stored, file, n_counted = read_file(path, tmp_path)
        except DatasetError:
            continue
        where = f"seed {seed}, {path.name}, {file.title}"
        assert file.pairs is None or n_counted >= len(rows) / 2, where
        texts = {text for row in rows for text in list_texts(row)}
        for pair in stored:
            n_stored += 1
            parts = [message.content for message in read_messages(pair["prompt"])]
            parts += [pair["completion_a"], pair["completion_b"]]
            numbers = {part.partition("#")[0][1:] for part in parts if "#" in part}
            assert len(numbers) <= 1, where
            if any(sign in note for note in file.notes for sign in REPORTED):
                continue
            unknown = [
                p
                for p in parts
                if p.strip() not in texts and not {q.strip() for q in p.split("\n")} <= texts
            ]
            assert not unknown or file.rows.notes, (where, unknown)
    assert n_stored > 10
