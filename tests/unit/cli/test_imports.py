"""`rlhf import`: what a file holds stands in the store once, and what it does not is said by
line.
"""

import csv
import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.imports import IMPORTS, open_import, read_settings
from rlhf_pipeline.cli.preferences import RowsOfVotes, import_votes
from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.errors import ConfigurationError, DatasetError
from rlhf_pipeline.core.frames import COMPARISONS, EXPORTED_VOTES, check_frame
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.cells import MomentParser
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import PreferenceFile, ReadOptions
from rlhf_pipeline.feedback.datasets.staging import StagedVotes
from rlhf_pipeline.feedback.datasets.votes import VoteImport
from rlhf_pipeline.store import Store


def today() -> str:
    """Asked anew: a suite may run past midnight."""
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def rlhf(home):
    """`rlhf(...)` in a home that nobody made before; errors that the library raises come
    through.
    """

    def call(*arguments, in_home=home, **environ):
        environ = {"RLHF_HOME": str(in_home), "COLUMNS": "200", **environ}
        return (
            CliRunner()
            .invoke(app, [str(a) for a in arguments], env=environ, catch_exceptions=False)
            .output
        )

    return call


@pytest.fixture
def take(rlhf):
    """Imports a file of preferences without asking; what follows the name of its shape."""

    def call(file, *arguments, **more):
        output = rlhf("import", "preferences", file, "--yes", "--no-replay", *arguments, **more)
        return output.partition("\n")[2]

    return call


def store_of(home, project="real"):
    return Store.open(f"sqlite:///{home}/store.db")


def pair(n, **more):
    return {
        "pair_id": f"p{n}",
        "prompt": f"prompt {n}",
        "response_a": f"yes {n}",
        "response_b": f"no {n}",
        **more,
    }


def vote(n, annotator="ann@example.org", choice="a", submitted_at="2016-01-31 13:23:06", **more):
    return {
        "pair_id": f"p{n}",
        "annotator_id": annotator,
        "choice": choice,
        "submitted_at": submitted_at,
        **more,
    }


def write(path, rows):
    """The rows as a file of the path's kind."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(
            pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), path
        )
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    return path


def votes_in(home, project="real"):
    with store_of(home, project) as store:
        return store.votes.log(schema=EXPORTED_VOTES).to_dict("records")


def comparisons_in(home, project="real"):
    with store_of(home, project) as store:
        return {
            row["source_pair_id"]: row
            for frame in store.comparisons.stream()
            for row in frame.to_dict("records")
        }


@pytest.mark.parametrize(("name", "message"), [("p.csv", ", only a header"), ("p.parquet", "")])
def test_file_without_rows_is_refused(take, tmp_path, name, message):
    file = tmp_path / name
    pd.DataFrame(columns=list(pair(1)), dtype=str).to_csv(tmp_path / "p.csv", index=False)
    schema = pa.schema([(column, pa.string()) for column in pair(1)])
    pq.write_table(schema.empty_table(), tmp_path / "p.parquet")
    with pytest.raises(
        DatasetError, match=f"{re.escape(name)} has no rows{message}\\. Nothing was"
    ):
        take(file)


def test_a_new_home_takes_the_project_and_holds_it(take, home, tmp_path):
    file = write(tmp_path / "pairs.jsonl", [pair(1)])
    take(file, "--project", "real")
    assert HomeFacts.load(home).project == "real"
    assert take(file).startswith("pairs: 0 imported, 1 already known")
    with pytest.raises(ConfigurationError, match="holds project 'real', not 'other'"):
        take(file, "--project", "other")
    with pytest.raises(ConfigurationError, match="project: must consist of lower-case"):
        take(file, "--project", "No Such", in_home=tmp_path / "new")


def test_project_that_later_commands_cannot_find_is_refused(take, home, tmp_path):
    call = (write(tmp_path / "pairs.jsonl", [pair(1)]), "--project", "b")
    with pytest.raises(ConfigurationError, match="--project is 'b', but RLHF_PROJECT is 'a'"):
        take(*call, RLHF_PROJECT="a")
    config = tmp_path / "named.yaml"
    config.write_text("project: a\n")
    with pytest.raises(ConfigurationError, match=r"but project in .*named.yaml is 'a'"):
        take(*call, RLHF_CONFIG=str(config))
    assert HomeFacts.load(home) is None
    assert "1 imported" in take(*call, RLHF_PROJECT="b")


def test_every_row_is_counted_once(take, home, tmp_path):
    rows = [
        pair(1),
        pair(2),
        pair(1),
        pair(3, prompt=" "),
        pair(2, response_a="other"),
        {"pair_id": "p4", "prompt": "x", "response_a": "y"},
    ]
    file = write(tmp_path / "pairs.jsonl", rows)
    output = take(file, "--project", "real")
    assert output.splitlines() == [
        "pairs: 2 imported, 0 already known, 1 merged, 3 rejected",
        "6: no verdict: the pair is stored without a vote (--offer asks people for one)",
        "line 4: prompt is empty",
        "line 5: source_pair_id 'p2' is already used in this file for other texts or another "
        "source. Give each pair a unique id, or leave the column of ids out with --leave-out",
        "line 6: completion_b is missing",
        f"rejected rows with their reasons: {file}.rejected.jsonl",
    ]
    rejected = [
        json.loads(line) for line in Path(f"{file}.rejected.jsonl").read_text().splitlines()
    ]
    assert [line["line"] for line in rejected] == [4, 5, 6]
    assert rejected[2]["row"]["completion_a"] == "y"
    assert take(file).startswith("pairs: 0 imported, 2 already known, 1 merged, 3 rejected")
    with store_of(home) as store:
        first, second = store.imports.all()
        assert (first.state, first.kind) == ("finished", "preferences")
        assert json.loads(first.record)["pairs"]["imported"] == 2
        assert json.loads(second.record)["reasons"]["prompt is empty"] == 1
        store.audit.verify()


def test_votes_are_cast_in_time_order_with_undated_last(take, home, tmp_path):
    take(
        write(tmp_path / "p.jsonl", [pair(n) for n in range(5)]),
        "--project",
        "real",
    )
    times = [
        "2016-03-01T00:00:00Z",
        None,
        "2016-01-31T13:00:00",
        "2023-05-18 19:58:54",
        "2016-01-31T13:00:00+02:00",
    ]
    output = take(
        write(tmp_path / "v.jsonl", [vote(n, submitted_at=t) for n, t in enumerate(times)]),
    )
    assert output.splitlines() == [
        "votes: 5 imported, 0 already known, 0 merged, 0 rejected",
        "2 times without a zone read as UTC, 2 with one converted to UTC (--timezone names "
        "another)",
        "1 vote without a time: filed under the day of import, outside the drift streams",
        "3 days from 2016-01-31 to 2023-05-18, not replayed: no predictions and no drift for them",
    ]
    stored = votes_in(home)
    assert [row["source_pair_id"] for row in stored] == ["p4", "p2", "p0", "p3", "p1"]
    assert [row["day"] for row in stored] == [
        "2016-01-31",
        "2016-01-31",
        "2016-03-01",
        "2023-05-18",
        today(),
    ]
    assert stored[0]["voted_at"].isoformat() == "2016-01-31T11:00:00+00:00"
    assert HomeFacts.load(home).start_day == date(2016, 1, 31)
    with store_of(home) as store:
        assert store.replays.pending_days() == []


def test_another_mapping_does_not_change_stored_comparisons(take, home, tmp_path):
    rows = [pair(n, subject="law", topic="tax", other=f"else {n}") for n in (1, 2)]
    call = (write(tmp_path / "pairs.jsonl", rows), "--project", "real", "--keep-others")
    assert take(*call, "--map", "category=subject").startswith("pairs: 2 imported")
    other_category = take(*call, "--map", "category=topic").splitlines()
    assert other_category[0] == "pairs: 0 imported, 2 already known, 0 merged, 0 rejected"
    assert any(
        line.startswith("stored columns were not changed, but differ from this file: category of 2")
        for line in other_category
    )
    assert "stored columns" not in take(*call)  # a file without the column says nothing of it
    assert "stored columns" not in take(*call, "--map", "category=subject")
    with pytest.raises(DatasetError, match="No pairs of"):
        take(*call, "--map", "completion_b=other")
    rejects = Path(f"{tmp_path / 'pairs.jsonl'}.rejected.jsonl").read_text().splitlines()
    assert json.loads(rejects[0])["reason"].startswith(
        "source_pair_id 'p1' is stored with other texts or another source, which stay as they are. "
        "To correct an import, import into a new home"
    )
    assert {row["category"] for row in comparisons_in(home).values()} == {"law"}


def test_repeated_votes_under_other_names_give_a_warning(take, home, tmp_path):
    take(write(tmp_path / "p.jsonl", [pair(1), pair(2)]), "--project", "a")
    votes = [vote(1, nick="ann"), vote(2, nick="ann")]
    file = write(tmp_path / "votes.jsonl", votes)
    without = ("--leave-out", "annotator_id")
    assert "warning" not in take(file, "--leave-out", "nick")
    again = take(file, "--map", "annotator_id=nick", *without)
    assert "warning: 2 of the 2 votes repeat choice and time of stored votes" in again
    assert "warning" not in take(file, "--map", "annotator_id=nick", *without)
    late = [vote(1, "bob", submitted_at="2016-02-01 10:00:00"), vote(2, "bob")]
    assert "warning" not in take(write(tmp_path / "late.jsonl", late))


def test_a_column_places_annotators_in_groups(take, home, tmp_path):
    pairs = write(tmp_path / "pairs.jsonl", [pair(1), pair(2)])
    take(pairs, "--project", "real")
    votes = [vote(1, annotator_group="experts"), vote(1, "bob@example.org", annotator_group="")]
    other = vote(2, annotator_group="crowd")
    output = take(write(tmp_path / "votes.jsonl", [*votes, other]))
    assert "annotator_group 'crowd', but an earlier row places the annotator in 'experts'" in output
    with store_of(home) as store:
        assert list(store.annotator_groups.all().values()) == ["experts"]


def test_votes_on_own_comparisons_need_no_replay(rlhf, home, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(home))
    rlhf("init", RLHF_PROJECT="real")
    with store_of(home) as store:
        rows = [own_comparison("c1")]
        frame = check_frame(pd.DataFrame(rows, columns=[*COMPARISONS.columns]), COMPARISONS)
        store.comparisons.publish(frame, published_at=datetime(2016, 1, 31, tzinfo=UTC))
    file = tmp_path / "v.csv"
    file.write_text("comparison_id,annotator_id,choice,voted_at\nc1,ann,a,2016-01-31T09:00:00Z\n")
    output = rlhf("import", "preferences", file, "--yes")
    assert "1 imported" in output
    assert "`rlhf loop` or the daemon takes them" in output
    with store_of(home) as store:
        assert store.replays.pending_days() == []
        assert store.votes.count() == 1


def own_comparison(name):
    return {
        "day": "2016-01-31",
        "comparison_id": name,
        "prompt_id": "p1",
        "prompt": "Why?",
        "completion_a_id": "x",
        "completion_b_id": "y",
        "completion_a": "one",
        "completion_b": "two",
        "model_version_a": "real.policy@1",
        "model_version_b": "real.policy@1",
        "category": "legal",
        "repeat_of": None,
        "position": 0,
        "seed": 7,
    }


def test_import_asks_to_replay_the_days_of_new_votes(take, home, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(home))
    take(
        write(tmp_path / "p.jsonl", [pair(n) for n in range(3)]),
        "--project",
        "real",
    )
    file = write(
        tmp_path / "v.jsonl",
        [vote(0), vote(1, submitted_at="2016-02-01T00:00:00Z"), vote(2, submitted_at=None)],
    )

    def take_votes():
        settings = read_settings(None)
        opened = PreferenceFile(open_rows(file), "v", ColumnMapping(), ReadOptions())
        with open_import("preferences", file, opened.rows, None, opened.names) as intake:
            store, clock = intake.workspace.store, MomentParser(now=intake.now)
            staged = StagedVotes(settings.home / IMPORTS)
            votes = VoteImport(
                store.comparisons, store.imports, intake.rejects, staged, clock, None
            )
            import_votes(intake, votes, RowsOfVotes(opened.votes, opened.names))
        return str(votes.counts), store.replays.pending_days(), intake.notes[-1]

    assert take_votes()[1:] == (
        ["2016-01-31", "2016-02-01"],
        "2 days from 2016-01-31 to 2016-02-01 to be replayed",
    )
    with store_of(home) as store:
        for day in store.replays.pending_days():
            store.replays.mark_done(day)
    counts, pending, _ = take_votes()
    assert counts.startswith("0 imported, 3 already known")
    assert pending == []  # nothing new, nothing to replay


def test_same_votes_with_another_column_are_refused(take, home, tmp_path):
    take(
        write(tmp_path / "p.jsonl", [pair(n) for n in range(2)]),
        "--project",
        "real",
    )
    file = write(
        tmp_path / "v.jsonl", [vote(0, secs=7.5), vote(1, submitted_at="2016-02-01", secs=8.5)]
    )
    assert take(file).startswith("votes: 2 imported")
    result = take(
        write(tmp_path / "more.jsonl", [vote(0, secs=7.5), vote(0, "bob")]),
        "--map",
        "duration_s=secs",
    )
    assert result.startswith("votes: 1 imported, 0 already known, 0 merged, 1 rejected")
    assert "with another strength, duration, reason or task" in result
    assert len(votes_in(home)) == 3


def test_home_stores_pseudonyms_and_no_names_of_annotators(take, home, tmp_path):
    take(write(tmp_path / "p.jsonl", [pair(1)]), "--project", "real")
    rows = [
        vote(1),
        vote(1, annotator="bob@example.org"),
        vote(1, annotator="ann_0123456789abcdef"),
        vote(9, annotator="carl@example.org"),
    ]
    take(write(tmp_path / "v.jsonl", rows))
    names = [row["annotator_id"] for row in votes_in(home)]
    assert len(set(names)) == 3
    assert "ann_0123456789abcdef" in names
    assert all(re.fullmatch(r"ann_[0-9a-f]{16}", name) for name in names)
    for path in home.rglob("*"):
        assert not path.is_file() or b"example.org" not in path.read_bytes(), path


def test_invalid_vote_is_rejected_by_line_and_the_others_are_cast(take, tmp_path):
    take(write(tmp_path / "p.jsonl", [pair(1)]), "--project", "real")
    wrong = {
        "choice is 'c'": vote(1, choice="c"),
        "source_pair_id 'p9' is not a comparison of this project": vote(9),
        "comparison_id 'q1' is not an id that this project gave": vote(1)
        | {"pair_id": None, "comparison_id": "q1"},
        "comparison_id and source_pair_id are both missing": vote(1) | {"pair_id": None},
        "strength 2 with choice tie": vote(1, choice="tie", strength=2),
        "strength 0 with choice a": vote(1, strength=0),
        "strength is 5": vote(1, strength=5),
        "duration_s is -1": vote(1, duration_s=-1),
        "not a valid time": vote(1, submitted_at="31.1.2016"),
        "before 2000": vote(1, submitted_at=0),
        "in the future": vote(1, submitted_at=(datetime.now(UTC) + timedelta(days=3)).isoformat()),
        "annotator_kind is 'robot'": vote(1, annotator_kind="robot"),
        "stated_confidence is 7": vote(1, confidence=7),
        "no JSON": None,
    }
    file = tmp_path / "v.jsonl"
    file.write_text(
        "".join(
            "{]\n" if row is None else json.dumps(row) + "\n"
            for row in [
                *(vote(1, name, choice) for name, choice in (("x", "a"), ("y", "b"))),
                vote(1, choice="tie", strength=0),
                *wrong.values(),
            ]
        )
    )
    output = take(file)
    assert output.startswith("votes: 3 imported, 0 already known, 0 merged, 14 rejected")
    rejected = [
        json.loads(line) for line in Path(f"{file}.rejected.jsonl").read_text().splitlines()
    ]
    assert [line["line"] for line in rejected] == list(range(4, 18))
    for why, line in zip(wrong, rejected, strict=True):
        assert why in line["reason"]


KINDS = ("csv", "jsonl", "parquet")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        # Both rows say their split.
        (
            [{"split": "train"}, {"split": "train"}, {"split": "test"}],
            "prompt 'Why?' is in two splits, line {1} in train, line {3} in test",
        ),
        # The second leaves it to the hash of the prompt, which says another one; the first does.
        (
            [{"split": "calib"}, {"split": None}],
            "prompt 'Why?' is in two splits, line {1} in calib, line {2} in train",
        ),
        (
            [{"split": None}, {"split": "calib"}],
            "prompt 'Why?' is in two splits, line {1} in train, line {2} in calib",
        ),
        # A group is in one split, and groups excuse nothing for who names none.
        (
            [{"split_group": "g", "split": "train"}, {"split_group": "g", "split": "test"}],
            "split_group 'g' is in two splits, line {1} in train",
        ),
        (
            [{"split_group": "g", "split": "test"}, {"split": "train"}],
            "prompt 'Why?' is in two splits, line {1} in test, line {2} in train",
        ),
        (
            [
                {"split_group": "g", "split": "test"},
                {"split_group": "h", "split": "train"},
                {"split": "test"},
            ],
            "prompt 'Why?' is in two splits, line {2} in train, line {3} in test",
        ),
    ],
)
def test_a_file_that_puts_a_prompt_into_two_splits_is_refused_whole(
    take, home, tmp_path, kind, rows, words
):
    """What is learnt of it would be judged on it."""
    pairs = [
        pair(0, split=None, split_group=None),
        *(pair(n, **{"split_group": None} | row, prompt="Why?") for n, row in enumerate(rows, 1)),
    ]
    file = write(tmp_path / f"pairs.{kind}", pairs)
    lines = [n + (2 if kind == "csv" else 1) for n in range(len(pairs))]
    with pytest.raises(DatasetError, match=re.escape(words.format(*lines))) as refused:
        take(file, "--project", "real")
    assert "nothing was imported. Give both" in str(refused.value)
    assert comparisons_in(home) == {}
    with store_of(home) as store:
        assert [i.state for i in store.imports.all()] == ["failed"]


def test_prompt_in_another_split_than_in_the_store_is_refused(take, home, tmp_path):
    first = [
        pair(0, prompt="Why?", split="test"),
        pair(1, prompt="How?"),
        pair(2, prompt="When?", split_group="g", split="calib"),
    ]
    take(write(tmp_path / "first.jsonl", first), "--project", "real")
    before = comparisons_in(home)
    known = {n: before[f"p{n}"]["comparison_id"] for n in range(3)}
    wrong = {
        "prompt 'Why?' is in two splits": (
            [pair(3, prompt="Why?", split="train")],
            f"comparison {known[0]} of the store in test, line 1 in train",
        ),
        "prompt 'Why?' is in": (
            [pair(4, prompt="Why?")],
            f"comparison {known[0]} of the store in test, line 1 in train",
        ),
        "prompt 'How?' is in": (
            [pair(5), pair(6, prompt="How?", split="test")],
            f"comparison {known[1]} of the store in [a-z]+, line 2 in test",
        ),
        "split_group 'g' is in": (
            [pair(7, split_group="g", split="test")],
            f"comparison {known[2]} of the store in calib, line 1 in test",
        ),
    }
    for words, (rows, places) in wrong.items():
        with pytest.raises(DatasetError, match=f"{re.escape(words)}.*{places}"):
            take(write(tmp_path / "more.jsonl", rows))
        assert comparisons_in(home) == before
    right = [
        pair(8, prompt="Why?", split="test"),
        pair(9, prompt="How?"),
        pair(10, split_group="g", split="calib"),
        *first,
    ]
    assert take(write(tmp_path / "more.jsonl", right)).startswith(
        "pairs: 3 imported, 3 already known"
    )


def test_prompts_that_differ_in_whitespace_share_a_split_and_are_counted(take, home, tmp_path):
    chat = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Why?"}]
    padded = [{"from": "system", "value": "Be terse. "}, {"from": "human", "value": "Why?\r\n"}]
    texts = ["Say it.\nNow.", " Say it.\r\nNow. ", json.dumps(chat), json.dumps(padded), "Other."]
    rows = [pair(n, prompt=text) for n, text in enumerate(texts)]
    output = take(write(tmp_path / "p.jsonl", rows))
    assert "2 prompts differ from others in whitespace" in output
    stored = comparisons_in(home)
    prompts = [stored[f"p{n}"]["prompt"] for n in range(len(texts))]
    assert [*prompts[:3], prompts[4]] == [*texts[:3], texts[4]]
    assert len({row["prompt_id"] for row in stored.values()}) == 3


def test_prompts_of_comparisons_may_be_messages(take, home, tmp_path):
    chat = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Why?"}]
    rows = [pair(1, prompt=chat), pair(2, prompt=[{"role": "user"}])]
    output = take(write(tmp_path / "p.jsonl", rows))
    assert "1 imported, 0 already known, 0 merged, 1 rejected" in output
    assert "a message of the user has no content" in output
    assert json.loads(comparisons_in(home)["p1"]["prompt"]) == chat
