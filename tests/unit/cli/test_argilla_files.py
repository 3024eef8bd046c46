"""An Argilla-shaped export, in and out again, by the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app

THEIRS = [
    {
        "id": f"r{i}",
        "fields": {
            "prompt": f"why {i}? — ü",
            "response_a": f"yes {i}",
            "response_b": "" if i == 1 else f"no {i}",
        },
        "metadata": {},
        "suggestions": {"preference": {"value": "a", "score": 0.75, "agent": "judge-7b"}}
        if i == 2
        else {},
        "responses": {
            "preference": [
                {"value": "a", "user_id": f"user-{i}"},
                {"value": "tie", "user_id": "user-x"},
            ],
            "strength": [{"value": 2, "user_id": f"user-{i}"}],
            "reason": [{"value": "=1+1 because", "user_id": "user-x"}],
        }
        if i
        else {},
        "vectors": {},
        "_server_id": None,
    }
    for i in range(3)
]


def rlhf(home: Path, *arguments: object) -> str:
    environ = {"RLHF_HOME": str(home), "COLUMNS": "200"}
    return (
        CliRunner()
        .invoke(app, [str(a) for a in arguments], env=environ, catch_exceptions=False)
        .output
    )


def answers(path: Path) -> list[tuple]:
    """Texts, votes by (choice, strength, reason), and suggestions of every record."""
    records = []
    for record in json.loads(path.read_text(encoding="utf-8")):
        by_user: dict[str, dict] = {}
        for question, responses in record["responses"].items():
            for answer in responses:
                by_user.setdefault(answer["user_id"], {})[question] = answer["value"]
        votes = sorted(
            tuple(str(vote.get(q)) for q in ("preference", "strength", "reason"))
            for vote in by_user.values()
        )
        records.append((tuple(record["fields"].values()), votes, record["suggestions"]))
    return sorted(records, key=str)


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(THEIRS), encoding="utf-8")
    return path


def test_an_argilla_export_is_imported_and_exported_equal(tmp_path, theirs):
    home, out = tmp_path / "home", tmp_path / "ours.argilla.json"
    call = ("import", "preferences", theirs, "--yes", "--no-replay")
    assert rlhf(home, *call).splitlines()[1:3] == [
        "pairs: 3 imported, 0 already known, 0 merged, 0 rejected",
        "votes: 5 imported, 0 already known, 0 merged, 0 rejected",
    ]
    assert rlhf(home, "export", "comparisons", "--format", "argilla", "--out", out).startswith(
        "3 records in "
    )
    assert answers(out) == answers(theirs)
    assert "user-1" not in out.read_text()  # people are pseudonyms, a model keeps its name
    assert "votes: 0 imported, 5 already known" in rlhf(home, *call)
    other, again = tmp_path / "other", tmp_path / "again.argilla.json"
    assert "votes: 5 imported" in rlhf(other, *call[:2], out, *call[3:])
    rlhf(other, "export", "comparisons", "--format", "argilla", "--out", again)
    assert json.loads(again.read_text()) == json.loads(out.read_text())
