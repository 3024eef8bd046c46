"""What an import keeps on its way: records in order of time, rejects, pseudonyms."""

import json
import os
import random
import stat
from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.feedback.datasets.pseudonyms import PSEUDONYM, Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import Rejects
from rlhf_pipeline.feedback.datasets.staging import COLUMNS, StagedVotes

START = datetime(2016, 1, 31, tzinfo=UTC)


def test_votes_are_sorted_by_time_then_line_with_undated_last(tmp_path):
    draw = random.Random(1)
    moments = [
        START + timedelta(seconds=draw.randrange(20)) if draw.random() < 0.8 else None
        for _ in range(300)
    ]
    votes = [
        dict.fromkeys(COLUMNS)
        | {
            "task_id": str(line),
            "voted_at": moment,
            "reason": "tab\tand\nbreak ü",
            "duration_s": 0.1,
        }
        for line, moment in enumerate(moments)
    ]
    staged = StagedVotes(tmp_path)
    staged.add(enumerate(votes[:100]))
    staged.add(enumerate(votes[100:], start=100))
    assert len(staged) == 300
    latest = START + timedelta(days=1)
    order = sorted(range(300), key=lambda line: (moments[line] or latest, line))
    assert [vote for batch in staged for vote in batch] == [votes[line] for line in order]
    assert list(tmp_path.iterdir()) == []  # so that a kill leaves nothing behind


def test_rejects_are_written_beside_the_input_by_line(tmp_path):
    with Rejects(tmp_path / "votes.csv", tmp_path / "home") as rejects:
        rejects.add(3, "choice is missing", {"choice": None, "text": "x" * 5_000})
        rejects.add(9, "choice is missing", {})
    lines = [
        json.loads(line)
        for line in (tmp_path / "votes.csv.rejected.jsonl").read_text().splitlines()
    ]
    assert [(line["line"], line["reason"]) for line in lines] == [
        (3, "choice is missing"),
        (9, "choice is missing"),
    ]
    assert lines[0]["row"]["text"].endswith("x… (5,000 characters)")
    assert rejects.reasons == {"choice is missing": 2}
    with Rejects(tmp_path / "votes.csv", tmp_path / "home"):
        pass
    assert list(tmp_path.iterdir()) == []  # nothing was rejected this time


def test_rejects_go_to_the_home_if_the_inputs_folder_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Rejects(tmp_path / "data" / "votes.csv", tmp_path / "home" / "imports") as rejects:
        rejects.add(3, "broken", {"bytes": "caf\udce9"})
    assert rejects.path == tmp_path / "home" / "imports" / "votes.csv.rejected.jsonl"
    assert json.loads(rejects.path.read_text())["line"] == 3


def test_pseudonyms_are_stable_within_one_home_only(tmp_path):
    pseudonyms = Pseudonyms.load(tmp_path / "a")
    again = Pseudonyms.load(tmp_path / "a")
    other = Pseudonyms.load(tmp_path / "b")
    name = pseudonyms("ann@example.org")
    assert PSEUDONYM.fullmatch(name)
    assert again("ann@example.org") == name != other("ann@example.org")
    assert pseudonyms("bob@example.org") != name
    assert pseudonyms(name) == name


def test_salt_is_private_and_complete(tmp_path):
    Pseudonyms.load(tmp_path)
    path = tmp_path / "annotator_salt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["annotator_salt"]
    path.write_bytes(b"short")
    with pytest.raises(DatasetError, match=r"has 5 bytes, not 32.*Restore it"):
        Pseudonyms.load(tmp_path)
