"""The retraining set as a file."""

import json

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.errors import MissingPartition
from rlhf_pipeline.store import Store
from tests.unit.improve.retraining.test_selection import BY_PEOPLE, pairs, scores, select_pairs


def test_prepare_writes_the_requested_rows_from_easy_to_hard(rlhf, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    HomeFacts(project="demo").write(home)
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
    files, path = Artefacts(home / "frames"), home / "data" / "vote_predictor_retrain_data.jsonl"
    with pytest.raises(MissingPartition, match="Materialise retraining_set"):
        rlhf("retraining", "prepare", home=home)
    old = select_pairs(pairs(4), scores([0.9, 0.55, 0.2, 0.7]), None, BY_PEOPLE)
    version = files.keep_version("retraining_set", old)
    assert files.keep_version("retraining_set", old) == version
    files.write_frame("retraining_set", old.head(2))
    rlhf("retraining", "prepare", home=home)
    assert len(path.read_text().splitlines()) == 2
    rlhf("retraining", "prepare", "--rows", "3", "--version", version, home=home)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 3
    assert [row["difficulty"] for row in rows] == sorted(row["difficulty"] for row in rows)
    assert {row["dataset_version"] for row in rows} == {version}
    assert set(rows[0]) == {
        *("prompt", "chosen", "rejected", "origin", "weight", "difficulty", "reason"),
        "dataset_version",
    }
    with pytest.raises(MissingPartition, match=f"Known: {version}"):
        rlhf("retraining", "prepare", "--version", "0" * 64, home=home)
