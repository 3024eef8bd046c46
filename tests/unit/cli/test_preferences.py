"""`rlhf import preferences`: a file is shown, stored once, repaired by another, and counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def rlhf(home):
    """`rlhf(...)` in a home that nobody made before; errors of the library come through."""

    def call(*arguments: object, exit_code: int = 0, in_home: Path = home) -> str:
        environ = {"RLHF_HOME": str(in_home), "COLUMNS": "200", "RLHF_PROJECT": ""}
        result = CliRunner().invoke(
            app, [str(a) for a in arguments], env=environ, catch_exceptions=False
        )
        assert result.exit_code == exit_code, result.output
        return result.output

    return call


@pytest.fixture
def take(rlhf):
    """Imports a file without asking; the lines that were printed."""

    def call(*arguments: object, **more: Any) -> list[str]:
        options = ("--yes", "--no-replay")
        return rlhf("import", "preferences", *arguments, *options, **more).splitlines()

    return call


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def preference(n: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Question {n}?", "chosen": f"yes {n}", "rejected": f"no {n}", **more}


def pair(n: int, **more: Any) -> dict[str, Any]:
    return {"id": f"p{n}", "prompt": f"Question {n}?", "a": f"yes {n}", "b": f"no {n}", **more}


def read_store(home: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The comparisons and votes of a home."""
    with Store.open(f"sqlite:///{home}/store.db") as store:
        comparisons = [
            row for frame in store.comparisons.stream() for row in frame.to_dict("records")
        ]
        return comparisons, store.votes.log(schema=EXPORTED_VOTES).to_dict("records")


def list_preferred(home: Path) -> list[tuple[str, str]]:
    """(prompt, text that was preferred) of each vote for a side, sorted."""
    comparisons, votes = read_store(home)
    by_id = {row["comparison_id"]: row for row in comparisons}
    return sorted(
        (
            by_id[v["comparison_id"]]["prompt"],
            by_id[v["comparison_id"]][f"completion_{v['choice']}"],
        )
        for v in votes
        if v["choice"] in ("a", "b")
    )


def test_without_a_terminal_nothing_is_stored(rlhf, home, tmp_path):
    rows = [preference(n) for n in range(12)] + [preference(1, prompt="")]
    output = rlhf("import", "preferences", write(tmp_path / "f.jsonl", rows), exit_code=2)
    assert "TRL preference" in output
    assert "First of 12 new pairs as they would be stored, and 12 new votes" in output
    assert ("Question 9?" in output, "Question 10?" in output) == (True, False)
    assert "rejected line 13: prompt is empty" in output
    assert "Nothing was stored" in output
    assert not home.exists()


def test_the_preview_knows_what_is_stored(rlhf, take, home, tmp_path):
    take(write(tmp_path / "f.jsonl", [preference(n) for n in range(3)]))
    before = list_preferred(home)
    more = write(tmp_path / "g.jsonl", [preference(n) for n in range(5)])
    output = rlhf("import", "preferences", more, exit_code=2)
    assert "pairs: 2 new, 3 known, 0 merged, 0 rejected" in output
    assert "votes: 2 new, 3 known, 0 merged, 0 rejected" in output
    assert list_preferred(home) == before


def test_pairs_and_votes_of_two_files_in_any_order(take, home, tmp_path):
    votes = [{"id": f"p{n}", "annotator": "ann", "choice": "b"} for n in range(2)]
    lines = take(
        write(tmp_path / "votes.jsonl", votes),
        write(tmp_path / "pairs.jsonl", [pair(n) for n in range(2)]),
    )
    assert "votes: 2 imported, 0 already known, 0 merged, 0 rejected" in lines or any(
        line.startswith("2 imported") for line in lines
    )
    assert list_preferred(home) == [(f"Question {n}?", f"no {n}") for n in range(2)]


def test_votes_find_their_pair_by_its_texts_on_either_side(take, home, tmp_path):
    take(write(tmp_path / "pairs.jsonl", [pair(n) for n in range(2)]))
    turned = [pair(0, choice="a"), pair(1, choice="a") | {"a": "no 1", "b": "yes 1"}]
    rows = [{**row, "id": f"other {i}", "annotator": "ann"} for i, row in enumerate(turned)]
    lines = take(write(tmp_path / "votes.jsonl", rows))
    assert "pairs: 0 imported, 2 already known, 0 merged, 0 rejected" in lines
    assert any(
        line.startswith("2 pairs have the texts of a pair with another id") for line in lines
    )
    assert list_preferred(home) == [("Question 0?", "yes 0"), ("Question 1?", "no 1")]


def test_a_known_pair_gets_the_id_it_lacked(take, home, tmp_path):
    texts = [{k: v for k, v in pair(n).items() if k != "id"} for n in range(2)]
    take(write(tmp_path / "texts.jsonl", texts))
    votes = write(
        tmp_path / "votes.jsonl",
        [{"id": f"p{n}", "annotator": "ann", "choice": "b"} for n in range(2)],
    )
    with pytest.raises(DatasetError, match="No votes of"):
        take(votes)
    renamed = [{"pair_id": row["id"], **row} for row in map(pair, range(2))]
    output = take(write(tmp_path / "ids.jsonl", renamed), "--leave-out", "id")
    assert output[1].startswith("pairs: 0 imported, 2 already known")
    assert "2 stored pairs had no id and got that of this file" in output
    take(votes)
    assert list_preferred(home) == [(f"Question {n}?", f"no {n}") for n in range(2)]
    assert "2 already known" in take(tmp_path / "ids.jsonl", "--leave-out", "id")[1]
    comparisons, _ = read_store(home)
    assert {row["source_pair_id"] for row in comparisons} == {"p0", "p1"}
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.audit.verify()


def test_a_file_that_loses_one_side_fails(take, home, tmp_path):
    rows = [pair(n, strength=9 if n % 2 else 2, choice="ab"[n % 2]) for n in range(6)]
    with pytest.raises(DatasetError, match="all 3 votes for b are rejected, while 3 others"):
        take(write(tmp_path / "f.jsonl", rows))
    words = [pair(n, choice=("a", "zweite")[n % 2]) for n in range(6)]
    with pytest.raises(DatasetError, match="no vote for b is left, and 'zweite' cannot be read"):
        take(write(tmp_path / "g.jsonl", words))
    assert read_store(home)[1] == []
    take(write(tmp_path / "g.jsonl", words), "--choice", "zweite=b")
    assert len(read_store(home)[1]) == 6


def test_votes_on_pairs_left_out_of_training_are_counted(take, tmp_path):
    rows = [pair(0, choice="a"), pair(1, choice="a", b="yes 1"), pair(2, choice="b", b="yes 2")]
    lines = take(write(tmp_path / "f.jsonl", rows))
    assert "flagged and left out of training: 2 identical" in lines
    assert "2 votes on pairs that are left out of training" in lines


def test_votes_sent_twice_are_one(rlhf, take, home, tmp_path):
    rows = [
        pair(n, choice="a", annotator="ann", created_at=f"2026-03-02T09:0{n}:0{s}Z")
        for n in range(3)
        for s in (0, 2)
    ]
    file = write(tmp_path / "f.jsonl", rows)
    sentence = "3 votes merged: sent twice, equal to a vote of the same person on the same pair"
    assert sentence in rlhf("import", "preferences", file, exit_code=2)
    for n_new in (3, 0):
        lines = take(file)
        assert f"votes: {n_new} imported, {3 - n_new} already known, 3 merged, 0 rejected" in lines
        assert any(line.startswith(sentence) for line in lines)
    assert len(read_store(home)[1]) == 3


def test_tags_are_exported_and_imported(rlhf, take, tmp_path):
    take(write(tmp_path / "f.jsonl", [preference(1, passage="p")]), "--keep-others")
    rlhf("export", "comparisons", "--out", tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["tags"] == '{"passage": "p"}'
    other = tmp_path / "other"
    take(tmp_path / "out.jsonl", in_home=other)
    assert read_store(other)[0][0]["tags"] == row["tags"]


def test_votes_of_a_rejected_pair_count_for_no_other(take, home, tmp_path):
    """Rows that share an id, as those of a question do, are pairs with other texts."""
    path = write(
        tmp_path / "f.jsonl",
        [pair(1, choice="a"), pair(2, id="p1", choice="b", annotator="Ann"), pair(3, choice="b")],
    )
    lines = take(path)
    assert "votes: 2 imported, 0 already known, 0 merged, 1 rejected" in lines
    assert list_preferred(home) == [("Question 1?", "yes 1"), ("Question 3?", "no 3")]


def test_a_file_with_rejected_ids_is_stored_without_them(take, home, tmp_path):
    file = write(tmp_path / "p.jsonl", [preference(n, id="topic") for n in (1, 2)])
    assert any("--leave-out" in line for line in take(file))
    take(file, "--leave-out", "id")
    assert len(list_preferred(home)) == 2


def test_pairs_without_votes_are_offered_on_request(take, home, tmp_path):
    rows = [pair(n, choice=choice) for n, choice in enumerate(("a", None, None))]
    output = take(write(tmp_path / "p.jsonl", rows), "--offer", "--keep-annotators")
    with Store.open(f"sqlite:///{home}/store.db") as store:
        overlap = store.rules.latest()[1].overlap
        ids = [row["comparison_id"] for row in read_store(home)[0]]
        assert sorted(store.cards.count_wanted(ids).values()) == [(overlap, 0)] * 2
    assert f"{2 * overlap} judgements wanted of people" in output


def test_a_file_without_a_readable_verdict_fails(take, tmp_path):
    late = [pair(n, choice="ab"[n], created_at="01.02.2026 9:05") for n in range(2)]
    with pytest.raises(DatasetError, match=r"No votes of .* could be imported"):
        take(write(tmp_path / "late.jsonl", late))
    good = [{"prompt": "Why?", "completion": "So.", "label": True}]
    with pytest.raises(DatasetError, match=r"No row of .* is imported, for the reasons above"):
        take(write(tmp_path / "good.jsonl", good))
    twice = [{**pair(7, choice=c), "id": None} for c in "aab"]
    output = take(write(tmp_path / "twice.jsonl", twice))
    assert any("1 vote on a pair that the same person judged before" in line for line in output)


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"prompt": "<s>[INST] Why? [/INST]"}, "the prompt begins with '<s>[INST] Why? [/INS'"),
        ({"prompt": [{"role": "user", "content": "[INST] Why?"}]}, "the prompt begins with '[INST"),
        ({"a": "So.<|im_end|>\n"}, "completion_a ends with '<|im_end|>'"),
        ({"b": "<|im_start|>assistant\nNo."}, "completion_b begins with '<|im_start|>"),
        ({"category": ["a"]}, "category is a list, not a text. Leave its column out"),
        ({"a": "<s>old</s>"}, None),  # HTML
    ],
)
def test_texts_that_a_chat_template_wrote_are_refused(take, tmp_path, texts, fault):
    rows = [pair(1, choice="a"), pair(2, choice="b"), {**pair(3, choice="a"), **texts}]
    output = "\n".join(take(write(tmp_path / "f.jsonl", rows)))
    assert (f"line 3: {fault}" in output) if fault else "pairs: 3 imported" in output
