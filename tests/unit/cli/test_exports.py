"""Comparisons, votes and tuples as files, and back."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.feedback.datasets.formats import FORMATS
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EXPORTS = ("comparisons", "votes", "tuples")
# whose rows are records: test_argilla_files
TABLES = {name: form for name, form in FORMATS.items() if name != "argilla"}


def comparison(i, **more):
    usual = {
        "day": "2026-01-01",
        "comparison_id": f"c{i}",
        "prompt_id": f"p{i}",
        "prompt": f"why {i}?\nüber — 🎉",
        "completion_a_id": f"x{i}",
        "completion_b_id": f"y{i}",
        "completion_a": '=HYPERLINK("http://evil"), said she',
        "completion_b": "",
        "model_version_a": "demo.policy@1",
        "model_version_b": "demo.policy@2",
        "category": "factual",
        "repeat_of": None,
        "position": i,
        "seed": 7,
    }
    return dict.fromkeys(COMPARISONS.columns) | usual | more


def vote(i, comparison_id, choice, annotator="ann_0123456789abcdef", **more):
    usual = {
        "annotator_kind": "human",
        "voted_at": NOON + timedelta(minutes=i, microseconds=i),
        "origin": "page",
        "idempotency_key": f"k{i}",
    }
    return NewVote(
        comparison_id=comparison_id, annotator_id=annotator, choice=choice, **usual | more
    )


def made(home):
    """A home that has a store and no Dagster, as an import leaves it: own comparisons, a repeat,
    imported ones, all kinds of votes.
    """
    home.mkdir()
    HomeFacts(project="demo").write(home)
    elsewhere = {"source": "set", "category": "instruction", "model_version_b": "imported"}
    rows = [
        comparison(0),
        comparison(1),
        comparison(
            2,
            completion_a="",
            completion_b=comparison(0)["completion_a"],
            prompt_id="p0",
            prompt=comparison(0)["prompt"],
            repeat_of="c0",
        ),
        comparison(
            3, **elsewhere, source_pair_id="s3", split_group="debate", split="calib", gold="tie"
        ),
        comparison(
            4,
            **elsewhere,
            source_pair_id="s4",
            completion_b=comparison(4)["completion_a"],
            flag="identical",
        ),
        comparison(
            5,
            **elsewhere,
            source_pair_id="s5",
            completion_a="- minus",
            completion_b="'quoted'",
            gold="a",
        ),
    ]
    votes = [
        vote(
            1,
            "c0",
            "a",
            strength=3,
            reason="=1+1\r\nbecause",
            duration_s=0.1 + 0.2,
            stated_confidence=0.75,
            task_id="t1",
            is_blind=True,
        ),
        vote(2, "c0", "tie", annotator="simulated-7", annotator_kind="simulated", is_blind=False),
        vote(3, "c1", "both_bad", reason=""),
        vote(4, "c1", "b", strength=1),
        vote(5, "c2", "b"),
        vote(6, "c3", "skip"),
        vote(7, "c4", "a"),
    ]
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
        store.comparisons.publish(check_frame(pd.DataFrame(rows), COMPARISONS), published_at=NOON)
        cast = store.votes.cast_many(votes)
        store.votes.cast(vote(9, "c2", "a", supersedes=cast[4].vote_id))
        store.votes.cast(vote(8, "c3", "tie", origin="import", voted_at=None))
    return home


@pytest.fixture
def home(tmp_path):
    return made(tmp_path / "home")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_withdrawn_votes_are_exported_on_request(rlhf, home):
    rlhf("export", "votes", home=home)
    assert not any(row["is_superseded"] for row in read(home / "exports" / "votes.jsonl"))
    assert rlhf("export", "votes", "--superseded", home=home).output.startswith("9 votes in ")
    votes = read(home / "exports" / "votes.jsonl")
    assert [row["comparison_id"] for row in votes if row["is_superseded"]] == ["c2"]


def carried_over(rlhf, home, target, folder, form, nouns=("comparisons", "votes")):
    """The exports of a home, imported into another; what the imports said."""
    folder.mkdir()
    outputs = []
    for noun in nouns:
        path = folder / f"{noun}{form().suffix}"
        rlhf("export", noun, "--out", str(path), home=home)
        more = ["--no-replay"] if noun == "votes" else []
        outputs.append(
            rlhf("import", noun, str(path), "--project", "elsewhere", *more, home=target).stdout
        )
        assert not list(folder.glob("*rejected*")), outputs[-1]
    return outputs


@pytest.mark.parametrize("name", TABLES)
def test_an_export_survives_a_round_trip_through_another_project(rlhf, home, tmp_path, name):
    form, target = TABLES[name], tmp_path / "elsewhere"
    outputs = carried_over(rlhf, home, target, tmp_path / "files", form)
    assert [line.split(",")[0] for line in outputs] == ["6 imported", "8 imported"]
    for noun in EXPORTS:
        first, second = tmp_path / f"one{form.suffix}", tmp_path / f"two{form.suffix}"
        rlhf("export", noun, "--out", str(first), home=home)
        rlhf("export", noun, "--out", str(second), home=target)
        assert second.read_bytes() == first.read_bytes()
