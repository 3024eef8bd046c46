"""`rlhf datasets`: from votes and feedback to a file for a trainer."""

import json

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.errors import ConfigurationError, DatasetConflict, NotFound
from rlhf_pipeline.store import Store
from tests.dataset_rows import build_vote_pairs


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    HomeFacts(project="demo").write(home)
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
    Artefacts(home / "frames").write_frame("preference_pairs", build_vote_pairs())
    return home


def test_a_data_set_is_built_frozen_and_exported(rlhf, home, tmp_path):
    built = rlhf("datasets", "build", "Support Q4", home=home).output
    assert "Support Q4: 2 rows, quality" in built
    assert "Support Q4@1: 2 rows" in rlhf("datasets", "freeze", "Support Q4", home=home).output
    output = rlhf("datasets", "export", "Support Q4", home=home).output.replace("\n", "")
    path = home / "exports" / "support-q4-1.trl.jsonl"
    assert str(path) in output
    assert json.loads(path.read_text().splitlines()[0]) == {
        "prompt": "Where is Bern?",
        "chosen": "In Switzerland.",
        "rejected": "In Austria.",
    }
    options = ("--format", "csv", "--version", "1", "--out", str(tmp_path / "out"))
    rlhf("datasets", "export", "Support Q4", *options, home=home)
    assert (tmp_path / "out" / "support-q4-1.csv.csv.manifest.json").exists()
    listed = rlhf("datasets", "list", home=home).output
    assert "Support Q4" in listed
    assert "exported" in listed


def test_a_query_replaces_what_a_data_set_holds(rlhf, home):
    query = '{"votes": {"categories": ["creative"]}}'
    built = rlhf("datasets", "build", "one", "--type", "dpo", "--query", query, home=home).output
    assert "one: 1 rows" in built
    assert (
        "one: 2 rows"
        in rlhf("datasets", "build", "one", "--query", '{"votes": {}}', home=home).output
    )
    assert "one: 2 rows" in rlhf("datasets", "build", "one", home=home).output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("build", "x", "--type", "odd"), ConfigurationError, "type: Input should be"),
        (
            ("build", "x", "--query", '{"vote": 1}'),
            ConfigurationError,
            r"vote: Extra inputs.* known: votes, feedback",
        ),
        (("build", "x", "--query", "{"), ConfigurationError, "Invalid JSON"),
        (("build", "x@1"), ConfigurationError, "name: .*NAME@2"),
        (("build", "x", "--query", '{"votes": {"cluster": "no"}}'), NotFound, "'no'"),
        (("freeze", "none"), NotFound, "data set 'none'"),
        (("export", "none"), NotFound, "data set 'none'"),
        (("list", "--status", "odd"), ConfigurationError, "status: Input should be"),
    ],
)
def test_what_cannot_be_is_refused(rlhf, home, arguments, error, message):
    with pytest.raises(error, match=message):
        rlhf("datasets", *arguments, home=home)
    assert "No data sets" in rlhf("datasets", "list", home=home).output


def test_a_set_with_a_problem_is_not_frozen(rlhf, home):
    rlhf("datasets", "build", "empty", "--query", "{}", home=home)
    with pytest.raises(DatasetConflict, match="no rows"):
        rlhf("datasets", "freeze", "empty", home=home)
