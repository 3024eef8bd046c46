"""Files in and out: bad rows are named, good ones come in, exports come back as they were."""

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.acceptance.home import COLUMNS, Home, pairs, write_csv

VOTE_COLUMNS = ("source_pair_id", "annotator_id", "choice", "strength", "voted_at", "reason")


def votes(n: int) -> list[tuple[object, ...]]:
    """Of three annotators on `n` comparisons; some ties and skips among them."""
    return [
        (
            f"c{i}",
            f"ann{k}@example.org",
            choice := ("a", "b", "tie", "a", "b", "skip")[(i + k) % 6],
            1 + (i + k) % 4 if choice in "ab" else "",
            f"2026-02-{1 + k:02}T10:{i:02}:00Z",
            f"reason {i}, {k} – ü" if i % 3 == 0 else "",
        )
        for i in range(n)
        for k in range(3)
    ]


def rejected(path: Path) -> dict[int, str]:
    """Line -> reason, as the file beside the imported one says."""
    lines = Path(f"{path}.rejected.jsonl").read_text().splitlines()
    return {row["line"]: row["reason"] for row in map(json.loads, lines)}


def test_three_bad_comparisons_are_named_and_others_imported(home: Home, tmp_path: Path) -> None:
    rows = pairs(20)
    rows[3] = ("c3", "", "left", "right")
    rows[9] = ("c9", "prompt c9", "only one side")
    rows[15] = ("c2", "prompt c15", "another pair", "under a used id")
    path = write_csv(tmp_path / "bad.csv", COLUMNS, rows)
    output = home.take(path)
    assert "17 imported, 0 already known, 0 merged, 3 rejected" in output
    assert set(rejected(path)) == {5, 11, 17}
    assert all(f"line {line}:" in output for line in (5, 11, 17))
    assert len(home.export("comparisons")) == 17


def test_three_bad_votes_are_named_and_others_imported(home: Home, tmp_path: Path) -> None:
    home.take(write_csv(tmp_path / "c.csv", COLUMNS, pairs(10)))
    rows = votes(10)
    rows[4] = ("c99", *rows[4][1:])
    rows[11] = (*rows[11][:2], "left", *rows[11][3:])
    rows[20] = (*rows[20][:4], "yesterday", "")
    path = write_csv(tmp_path / "bad.csv", VOTE_COLUMNS, rows)
    output = home.take(path)
    assert "27 imported, 0 already known, 0 merged, 3 rejected" in output
    reasons = rejected(path)
    assert set(reasons) == {6, 13, 22}
    assert all(value in reasons[line] for line, value in ((6, "c99"), (13, "left")))
    assert all(f"line {line}:" in output for line in (6, 13, 22))
    assert len(home.export("votes")) == 27
    home.run("audit", "verify")


def test_three_bad_prompts_are_named_and_others_imported(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"text": f"What is {i} times {i}?"}) for i in range(100)]
    rows[10], rows[50], rows[90] = '{"text": ""}', "no JSON", '{"question_mark": "?"}'
    path.write_text("\n".join(rows) + "\n")
    output = home.run("import", "prompts", path)
    assert "97" in output
    assert set(rejected(path)) == {11, 51, 91}


def test_a_file_of_bad_rows_alone_fails(home: Home, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bad.csv", COLUMNS, [("c1", "", "left", "right")])
    output = home.take(path, code=1)
    assert "line 2" in output


def test_a_second_import_changes_nothing(home: Home, tmp_path: Path) -> None:
    comparisons = write_csv(tmp_path / "c.csv", COLUMNS, pairs(10))
    cast = write_csv(tmp_path / "v.csv", VOTE_COLUMNS, votes(10))
    home.take(comparisons)
    home.take(cast)
    before = home.export("comparisons"), home.export("votes")
    output = home.take(comparisons)
    assert "0 imported, 10 already known" in output
    output = home.take(cast)
    assert "0 imported, 30 already known" in output
    assert (home.export("comparisons"), home.export("votes")) == before


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_exports_imported_elsewhere_export_the_same(
    home: Home, initialised: Path, tmp_path: Path, suffix: str
) -> None:
    home.take(write_csv(tmp_path / "c.csv", COLUMNS, pairs(12)))
    cast = write_csv(tmp_path / "v.csv", VOTE_COLUMNS, votes(12))
    home.take(cast)
    other = Home(shutil.copytree(initialised, tmp_path / "other"))
    for what in ("comparisons", "votes"):
        first, second = tmp_path / f"first-{what}.{suffix}", tmp_path / f"second-{what}.{suffix}"
        home.run("export", what, "--out", first)
        output = other.take(first)
        assert " 0 rejected" in output
        other.run("export", what, "--out", second)
        assert read(second) == read(first)
    assert len(read(tmp_path / f"first-votes.{suffix}")) == 36


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return pd.read_parquet(path).astype(object).where(lambda f: f.notna(), None).to_dict("records")


def test_annotators_are_imported_as_pseudonyms(home: Home, tmp_path: Path) -> None:
    home.take(write_csv(tmp_path / "c.csv", COLUMNS, pairs(5)))
    cast = write_csv(tmp_path / "v.csv", VOTE_COLUMNS, votes(5))
    home.take(cast)
    exported = home.export("votes")
    assert len({row["annotator_id"] for row in exported}) == 3
    stored = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert b"ann0@example.org" not in stored
