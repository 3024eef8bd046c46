"""Comparisons, votes and tuples as files, and back."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import HomeFacts
from rlhf_pipeline.datasets.formats import FORMATS
from rlhf_pipeline.datasets.preference import KINDS
from rlhf_pipeline.errors import ArtefactError, ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import COMPARISONS, DRIFT_REPORTS, check_frame
from rlhf_pipeline.object_stores import put
from rlhf_pipeline.records import NewFeedback, NewVote
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KIND_OF = {"comparisons": "comparison", "votes": "vote", "tuples": "tuple"}
EXPORTS = list(KIND_OF)
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
    HomeFacts(organization="default", project="demo").write(home)
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
        ),
        vote(2, "c0", "tie", annotator="simulated-7", annotator_kind="simulated"),
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


def read(path, noun):
    form = next(form() for form in TABLES.values() if form.suffix == path.suffix)
    with path.open("rb") as file:
        return form.read(file, KINDS[KIND_OF[noun]])


def test_the_given_format_overrides_the_suffix(rlhf, home, tmp_path):
    out = tmp_path / "votes.txt"
    rlhf("export", "votes", "--format", "csv", "--out", str(out), home=home)
    rlhf("export", "votes", "--format", "csv", home=home)
    assert out.read_bytes() == (home / "exports" / "votes.csv").read_bytes()
    assert out.read_bytes().startswith(b"schema,comparison_id,")


def test_withdrawn_votes_are_exported_on_request(rlhf, home):
    rlhf("export", "votes", home=home)
    assert not read(home / "exports" / "votes.jsonl", "votes")["is_superseded"].any()
    assert rlhf("export", "votes", "--superseded", home=home).output.startswith("9 votes in ")
    votes = read(home / "exports" / "votes.jsonl", "votes")
    assert votes.loc[votes["is_superseded"], "comparison_id"].tolist() == ["c2"]


@pytest.mark.parametrize("noun", EXPORTS)
def test_an_empty_store_is_a_file_without_rows(rlhf, initialised, tmp_path, noun):
    out = tmp_path / f"{noun}.parquet"
    assert rlhf("export", noun, "--out", str(out)).output == f"0 {noun} in {out}\n"
    pd.testing.assert_frame_equal(read(out, noun), KINDS[KIND_OF[noun]].empty_frame())


@pytest.mark.parametrize("noun", EXPORTS)
def test_without_a_project_nothing_is_made(rlhf, tmp_path, noun):
    with pytest.raises(ConfigurationError, match="rlhf init"):
        rlhf("export", noun, home=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_an_unknown_format_is_refused_before_anything_is_written(rlhf, home, tmp_path):
    with pytest.raises(ConfigurationError, match=r"xlsx.*--format"):
        rlhf("export", "votes", "--out", str(tmp_path / "votes.xlsx"), home=home)
    with pytest.raises(ConfigurationError, match="jsonl, csv, parquet"):
        rlhf("export", "votes", "--format", "xml", home=home)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    assert not (home / "exports").exists()


def test_an_export_that_fails_leaves_the_file_that_was_there(rlhf, home, tmp_path):
    out = tmp_path / "votes.jsonl"
    out.write_text("mine")
    with pytest.raises(ArtefactError, match="Name a file"):
        rlhf("export", "votes", "--format", "jsonl", "--out", str(tmp_path), home=home)
    (home / "store.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Exception, match="store"):
        rlhf("export", "votes", "--out", str(out), home=home)
    assert out.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "votes.jsonl"}


def carried_over(rlhf, home, target, folder, form, nouns=("comparisons", "votes")):
    """The exports of a home, imported into another; what the imports said."""
    folder.mkdir()
    said = []
    for noun in nouns:
        path = folder / f"{noun}{form().suffix}"
        rlhf("export", noun, "--out", str(path), home=home)
        more = ["--no-replay"] if noun == "votes" else []
        said.append(
            rlhf("import", noun, str(path), "--project", "elsewhere", *more, home=target).stdout
        )
        assert not list(folder.glob("*rejected*")), said[-1]
    return said


@pytest.mark.parametrize("name", TABLES)
def test_an_export_survives_a_round_trip_through_another_project(rlhf, home, tmp_path, name):
    form, target = TABLES[name], tmp_path / "elsewhere"
    said = carried_over(rlhf, home, target, tmp_path / "files", form)
    assert [line.split(",")[0] for line in said] == ["6 imported", "8 imported"]
    for noun in EXPORTS:
        one, two = tmp_path / f"one{form.suffix}", tmp_path / f"two{form.suffix}"
        rlhf("export", noun, "--out", str(one), home=home)
        rlhf("export", noun, "--out", str(two), home=target)
        pd.testing.assert_frame_equal(read(two, noun), read(one, noun), check_exact=True)
        assert two.read_bytes() == one.read_bytes()


def test_corrections_are_carried_over_as_any_comparison(rlhf, home, tmp_path):
    with Store.open(f"sqlite:///{home}/store.db") as store:
        for i in range(12):
            given = NewFeedback(
                kind="correction",
                prompt=f"2+{i}?",
                completion="wrong",
                correction=f"right {i}",
                given_at=NOON,
            )
            store.feedback.add(given, created_by="ann")
    said = carried_over(rlhf, home, tmp_path / "elsewhere", tmp_path / "files", TABLES["jsonl"])
    assert [line.split(",")[0] for line in said] == ["18 imported", "20 imported"]


@pytest.mark.parametrize("name", TABLES)
def test_importing_the_own_export_adds_nothing(rlhf, home, tmp_path, name):
    for noun in ("comparisons", "votes"):
        path = tmp_path / f"{noun}{TABLES[name].suffix}"
        rlhf("export", noun, "--out", str(path), home=home)
        assert rlhf("import", noun, str(path), "--project", "demo", home=home).stdout.startswith(
            "0 imported, "
        )
    assert rlhf("export", "votes", "--superseded", home=home).output.startswith("9 votes in ")


@pytest.mark.parametrize("name", TABLES)
def test_withdrawn_votes_are_not_cast_again(rlhf, home, tmp_path, name):
    target, path = tmp_path / "elsewhere", tmp_path / f"votes{TABLES[name].suffix}"
    carried_over(rlhf, home, target, tmp_path / "files", TABLES[name], nouns=["comparisons"])
    rlhf("export", "votes", "--superseded", "--out", str(path), home=home)
    assert rlhf("import", "votes", str(path), "--no-replay", home=target).stdout.startswith(
        "8 imported"
    )


@pytest.mark.parametrize("name", TABLES)
def test_tuples_alone_are_comparisons_and_votes_enough(rlhf, home, tmp_path, name):
    form, target = TABLES[name], tmp_path / "elsewhere"
    path, again = tmp_path / f"tuples{form.suffix}", tmp_path / f"again{form.suffix}"
    rlhf("export", "tuples", "--out", str(path), home=home)
    assert rlhf(
        "import", "comparisons", str(path), "--project", "elsewhere", home=target
    ).stdout.startswith("3 imported, 0 already known, 1 merged, 0 ")
    assert rlhf("import", "votes", str(path), "--no-replay", home=target).stdout.startswith(
        "4 imported"
    )
    rlhf("export", "tuples", "--out", str(again), home=target)
    pd.testing.assert_frame_equal(read(again, "tuples"), read(path, "tuples"), check_exact=True)


def paged(home, *days):
    """Pages as the drift_report stage leaves them."""
    files = Artefacts(str(home / "frames"))
    for day in days:
        put(files.report_path(day), f"<!doctype html><title>{day} – ✓</title>".encode())
    return files


def test_the_drift_report_of_a_day_is_exported_byte_for_byte(rlhf, home, tmp_path):
    files = paged(home, "2026-01-01", "2026-01-02")
    result = rlhf(
        "export",
        "drift-report",
        "--day",
        "2026-01-01",
        "--out",
        str(tmp_path / "page.html"),
        home=home,
    )
    assert (tmp_path / "page.html").read_bytes() == files.read_report("2026-01-01")
    assert result.output == f"Drift report of 2026-01-01 in {tmp_path / 'page.html'}\n"


def test_without_a_day_the_last_drift_report_is_exported(rlhf, home):
    files = paged(home, "2026-01-02", "2026-01-10", "2026-01-09")
    rlhf("export", "drift-report", home=home)
    assert (home / "exports" / "drift_report_2026-01-10.html").read_bytes() == files.read_report(
        "2026-01-10"
    )


def test_a_day_without_a_drift_report_names_the_command_to_run(rlhf, home):
    with pytest.raises(NotEnoughData, match=r"No drift report has been made yet.*feedback"):
        rlhf("export", "drift-report", home=home)
    files = paged(home, "2026-01-02", "2026-01-05")
    with pytest.raises(
        NotEnoughData,
        match=r"No drift report of 2026-01-03 .* `feedback` job for 2026-01-03.* from 2026-01-02 "
        r"to 2026-01-05",
    ):
        rlhf("export", "drift-report", "--day", "2026-01-03", home=home)
    # its page was deleted
    files.write_frame("drift_report", DRIFT_REPORTS.empty_frame(), "2026-01-03")
    with pytest.raises(
        NotEnoughData, match=r"without its page\. Materialise drift_report of 2026-01-03 again"
    ):
        rlhf("export", "drift-report", "--day", "2026-01-03", home=home)
    with pytest.raises(ConfigurationError, match=r"--day 3\.1\.2026.*2026-01-31"):
        rlhf("export", "drift-report", "--day", "3.1.2026", home=home)
    assert not (home / "exports").exists()
