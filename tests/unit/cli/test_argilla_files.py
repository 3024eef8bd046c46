"""An Argilla-shaped export, in and out again, by the command line."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.store import Store

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
    found = []
    for record in json.loads(path.read_text(encoding="utf-8")):
        by_user: dict[str, dict] = {}
        for question, said in record["responses"].items():
            for answer in said:
                by_user.setdefault(answer["user_id"], {})[question] = answer["value"]
        votes = sorted(
            tuple(str(vote.get(q)) for q in ("preference", "strength", "reason"))
            for vote in by_user.values()
        )
        found.append((tuple(record["fields"].values()), votes, record["suggestions"]))
    return sorted(found, key=str)


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(THEIRS), encoding="utf-8")
    return path


def test_an_argilla_export_is_imported_and_exported_equal(tmp_path, theirs):
    home, out = tmp_path / "home", tmp_path / "ours.argilla.json"
    assert rlhf(home, "import", "comparisons", theirs).startswith(
        "3 imported, 0 already known, 0 merged, 0 rejected"
    )
    told = rlhf(home, "import", "votes", theirs, "--undated", "--no-replay")
    assert told.startswith("5 imported, 0 already known, 0 merged, 0 rejected")
    assert rlhf(home, "export", "comparisons", "--format", "argilla", "--out", out).startswith(
        "3 records in "
    )
    assert answers(out) == answers(theirs)
    assert "user-1" not in out.read_text()  # people are pseudonyms, a model keeps its name
    assert rlhf(home, "import", "votes", theirs, "--undated", "--no-replay").startswith(
        "0 imported, 5 already known"
    )


def test_our_own_records_come_back_with_ids_times_and_people(tmp_path, theirs):
    first = tmp_path / "first"
    second = tmp_path / "second"
    out = tmp_path / "ours.argilla.json"
    again = tmp_path / "again.argilla.json"
    rlhf(first, "import", "comparisons", theirs)
    noon = datetime(2026, 1, 1, 12, 0, 0, 7, tzinfo=UTC)
    with Store.open(f"sqlite:///{first}/store.db") as store:
        c = store.comparisons.page()[0]["comparison_id"].tolist()
        usual = {"comparison_id": c[0], "voted_at": noon, "origin": "page"}
        store.votes.cast(
            NewVote(
                **usual,
                annotator_id="u1",
                annotator_kind="human",
                choice="b",
                strength=4,
                duration_s=0.1 + 0.2,
                idempotency_key="1",
            )
        )
        machine = {
            "annotator_id": "demo.reward_model@1",
            "annotator_kind": "machine",
            "stated_confidence": 0.9,
        }
        store.votes.cast(
            NewVote(**usual | {"origin": "pipeline"}, **machine, choice="a", idempotency_key="2")
        )
    rlhf(first, "export", "comparisons", "--format", "argilla", "--out", out)
    assert rlhf(first, "import", "votes", out, "--no-replay").startswith(
        "0 imported, 2 already known"
    )
    rlhf(second, "import", "comparisons", out)
    assert rlhf(second, "import", "votes", out, "--no-replay").startswith("2 imported")
    rlhf(second, "export", "comparisons", "--format", "argilla", "--out", again)
    assert again.read_text() == out.read_text()
