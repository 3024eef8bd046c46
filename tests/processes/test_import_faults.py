"""Files that are broken, disks that are full, imports that are killed or meet another: a clear
message, nothing doubled, nothing lost.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.imports import import_votes, open_import
from rlhf_pipeline.datasets.cells import MomentParser
from rlhf_pipeline.datasets.mapping import ColumnMapping
from rlhf_pipeline.errors import ArtefactError, DatasetError, StoreError
from rlhf_pipeline.frames import EXPORTED_VOTES
from rlhf_pipeline.store import Store

PAIRS = [
    {"pair_id": f"p{n}", "prompt": f"prompt {n}", "response_a": f"yes {n}", "response_b": f"no {n}"}
    for n in range(40)
]
START = datetime(2016, 1, 31)  # noqa: DTZ001 - as files have it
MEGABYTE = 1_000_000


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def rlhf(home):
    def call(*arguments, in_home=home):
        environ = {"RLHF_HOME": str(in_home), "COLUMNS": "200"}
        return (
            CliRunner()
            .invoke(app, ["import", *map(str, arguments)], env=environ, catch_exceptions=False)
            .output
        )

    return call


def store_of(home):
    return Store.open(f"sqlite:///{home}/store.db")


def vote(n, annotator="ann"):
    """Judgements of forty comparisons in turn, later ones earlier in time."""
    return {
        "pair_id": f"p{n % 40}",
        "annotator_id": f"{annotator} {n // 40}",
        "choice": "ab"[n % 2],
        "submitted_at": (START + timedelta(days=30, minutes=-7 * n)).isoformat(),
    }


def write_csv(path, rows, **options):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def with_pairs(rlhf, tmp_path):
    rlhf("comparisons", write_csv(tmp_path / "pairs.csv", PAIRS), "--project", "real")


def counts(home):
    with store_of(home) as store:
        store.audit.verify()
        return store.comparisons.count(), store.votes.count()


def states(home):
    with store_of(home) as store:
        return [i.state for i in store.imports.all()]


def test_half_a_parquet_file_imports_nothing(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    path = tmp_path / "votes.parquet"
    pq.write_table(pa.Table.from_pylist([vote(n) for n in range(200)]), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match="is truncated or not a Parquet file"):
        rlhf("votes", path, "--no-replay")
    assert counts(home) == (40, 0)
    path.write_bytes(whole)
    assert rlhf("votes", path, "--no-replay").startswith("200 imported")


def test_truncated_file_casts_no_votes_until_corrected(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    path = write_csv(tmp_path / "votes.csv", [vote(n) for n in range(5_000)])
    whole = path.read_text()
    path.write_text(whole + 'p1,"ann')
    with pytest.raises(DatasetError, match="line 5002: a quoted cell that opens here never ends"):
        rlhf("votes", path, "--no-replay")
    assert counts(home) == (40, 0)
    assert states(home) == ["finished", "failed"]
    assert list((home / "imports").glob("staged-*")) == []
    path.write_text(whole)
    assert rlhf("votes", path, "--no-replay").startswith(
        "5,000 imported, 0 already known, 0 merged, 0 rejected"
    )


def test_comparisons_before_a_break_are_known_after_correction(rlhf, home, tmp_path):
    rows = [{**PAIRS[0], "pair_id": f"p{n}", "prompt": f"prompt {n}"} for n in range(3_000)]
    path = write_csv(tmp_path / "pairs.csv", rows)
    whole = path.read_text()
    path.write_text(whole + 'p1,"prompt')
    with pytest.raises(DatasetError, match="line 3002"):
        rlhf("comparisons", path, "--project", "real")
    n_before = counts(home)[0]
    with store_of(home) as store:
        (failed,) = store.imports.all()
    assert json.loads(failed.record)["imported"] == n_before
    path.write_text(whole)
    assert rlhf("comparisons", path).startswith(
        f"{3_000 - n_before:,} imported, {n_before:,} already known"
    )


def test_a_wrong_delimiter_is_named_before_anything_is_made(rlhf, home, tmp_path):
    path = write_csv(tmp_path / "pairs.csv", PAIRS, delimiter=";")
    with pytest.raises(DatasetError, match="Add --delimiter ';'"):
        rlhf("comparisons", path, "--project", "real")
    assert not home.exists()
    assert rlhf("comparisons", path, "--project", "real", "--delimiter", ";").startswith(
        "40 imported"
    )


def test_a_missing_column_is_named_with_the_existing_ones(rlhf, home, tmp_path):
    rows = [{name: row[name] for name in ("pair_id", "prompt", "response_a")} for row in PAIRS]
    with pytest.raises(
        DatasetError,
        match=r"no column for completion_b\. The file has: pair_id, prompt, response_a.*--map "
        r"completion_b=COLUMN",
    ):
        rlhf("comparisons", write_csv(tmp_path / "pairs.csv", rows), "--project", "real")
    assert counts(home) == (0, 0)


def test_a_byte_order_mark_and_two_encodings_cost_the_odd_rows_only(rlhf, home, tmp_path):
    lines = [f"p{n},prüfe {n},ja,nein\r\n" for n in range(4)]
    path = tmp_path / "pairs.csv"
    header = b"\xef\xbb\xbfpair_id,prompt,response_a,response_b\r\n"
    path.write_bytes(
        header
        + b"".join(line.encode("latin-1" if n == 2 else "utf-8") for n, line in enumerate(lines))
    )
    output = rlhf("comparisons", path, "--project", "real").splitlines()
    assert output[:2] == [
        "3 imported, 0 already known, 0 merged, 1 rejected",
        "line 4: prompt is not UTF-8 (byte 0xFC after 2 characters). Save the file as UTF-8",
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_cell_of_ten_megabytes_costs_its_row_only(rlhf, tmp_path, kind):
    rows = [PAIRS[0], {**PAIRS[1], "response_a": "x" * 10 * MEGABYTE}, PAIRS[2]]
    path = tmp_path / f"pairs.{kind}"
    if kind == "csv":
        write_csv(path, rows)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    output = rlhf("comparisons", path, "--project", "real")
    assert output.startswith("2 imported, 0 already known, 0 merged, 1 rejected")
    assert "completion_a has 10,000,000 bytes, the limit is 1,000,000. Shorten or drop it" in output
    assert Path(f"{path}.rejected.jsonl").stat().st_size < 10_000


def test_times_with_and_without_zones_in_one_file_are_counted(rlhf, tmp_path):
    with_pairs(rlhf, tmp_path)
    rows = [
        vote(0),
        vote(1) | {"submitted_at": "2016-02-01T12:00:00+05:30"},
        vote(2) | {"submitted_at": "2016-02-01T12:00:00Z"},
    ]
    output = rlhf(
        "votes",
        write_csv(tmp_path / "votes.csv", rows),
        "--no-replay",
        "--timezone",
        "America/New_York",
    )
    assert "1 time without a zone read as America/New_York, 2 with one converted to UTC" in output


@pytest.fixture
def small_disk(tmp_path):
    """A file system of few megabytes, and a way to make it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)]
    if (
        os.name != "posix"
        or os.geteuid() != 0
        or subprocess.run(mount, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        yield (
            folder,
            lambda size: subprocess.run(
                ["mount", "-o", f"remount,size={size}", str(folder)], check=True
            ),
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_during_an_import_is_named_and_import_resumes(rlhf, small_disk, tmp_path):
    disk, grow = small_disk
    rows = [
        {**PAIRS[0], "pair_id": f"p{n}", "prompt": f"prompt {n} " + "x" * 5_000}
        for n in range(3_000)
    ]
    path = write_csv(tmp_path / "pairs.csv", rows)
    home = disk / "home"
    with pytest.raises(StoreError, match=r"no space is left\. Free disk space and try again"):
        rlhf("comparisons", path, "--project", "real", in_home=home)
    grow("100m")
    n_before = counts(home)[0]
    assert 0 < n_before < 3_000
    assert rlhf("comparisons", path, in_home=home).startswith(
        f"{3_000 - n_before:,} imported, {n_before:,} already known"
    )
    votes = [vote(n) | {"reason": "x" * 2_000} for n in range(3_000)]
    grow(f"{sum(p.stat().st_size for p in home.rglob('*') if p.is_file()) // MEGABYTE + 4}m")
    with pytest.raises(
        ArtefactError, match=r"imports.*No space left on device\. Free some space and run again"
    ):
        rlhf("votes", write_csv(tmp_path / "votes.csv", votes), "--no-replay", in_home=home)
    assert counts(home) == (3_000, 0)
    assert list((home / "imports").glob("staged-*")) == []
    grow("100m")
    assert rlhf("votes", tmp_path / "votes.csv", "--no-replay", in_home=home).startswith(
        "3,000 imported, 0 already known"
    )


def test_a_second_import_is_refused_and_names_the_first(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    path = write_csv(tmp_path / "votes.csv", [vote(n) for n in range(10)])
    with store_of(home) as store:
        store.imports.start("votes", "/data/other.csv", {})
        with (
            FileLock(home / "imports" / ".lock"),
            pytest.raises(
                DatasetError,
                match=r"is running: votes of /data/other\.csv, since .*Nothing of .*votes\.csv",
            ),
        ):
            rlhf("votes", path, "--no-replay")
        assert store.votes.count() == 0
    assert rlhf("votes", path, "--no-replay").startswith("10 imported")
    assert states(home) == ["finished", "failed", "finished"]


def test_concurrent_imports_of_one_file_import_it_once(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    path = write_csv(tmp_path / "votes.csv", [vote(n) for n in range(2_000)])
    command = [
        sys.executable,
        "-c",
        "from rlhf_pipeline.cli import main; main()",
        "import",
        "votes",
        str(path),
        "--no-replay",
    ]
    environ = {**os.environ, "RLHF_HOME": str(home)}
    both = [
        subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = ["".join(process.communicate()) for process in both]
    assert sum("2,000 imported" in text for text in said) == 1, said
    assert (
        sum(
            "Another import into" in text or "0 imported, 2,000 already known" in text
            for text in said
        )
        == 1
    ), said
    assert counts(home) == (40, 2_000)


class Ended(BaseException):
    """The user's Ctrl-C, or whatever ends a process at this point."""


def test_days_of_a_broken_import_stay_unfinished_until_repeated(rlhf, home, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(home))
    with_pairs(rlhf, tmp_path)
    path = write_csv(tmp_path / "votes.csv", [vote(n) for n in range(2_500)])

    def ends_after_the_first_thousand(phase, done, total):
        if phase == "casting":
            raise Ended

    def ended_import():
        with open_import("votes", path, None, ColumnMapping(), None) as intake:
            intake.progress = ends_after_the_first_thousand
            import_votes(
                intake, MomentParser(now=intake.now), None, ColumnMapping(), are_replayed=False
            )

    with pytest.raises(Ended):
        ended_import()
    assert counts(home) == (40, 1_000)
    other = write_csv(
        tmp_path / "other.csv", [vote(n, "bob") | {"submitted_at": "2017-01-01"} for n in range(3)]
    )
    assert rlhf("votes", other, "--no-replay", "--keep-annotators").startswith("3 imported")
    first = (START + timedelta(days=30, minutes=-7 * 2_499)).date().isoformat()
    with store_of(home) as store:
        (half,) = store.imports.find_unfinished()
    assert (half.file, half.first_day, half.error) == (str(path), first, "Ended: ")
    whole = home.with_name("copy")
    shutil.copytree(home, whole)
    assert rlhf("votes", path, "--no-replay", "--keep-annotators", in_home=whole).startswith(
        "1,500 imported, 1,000 already known"
    )
    with store_of(whole) as store:
        assert store.imports.find_unfinished() == []
    said = CliRunner().invoke(
        app, ["replay", "--unfinished"], env={"COLUMNS": "200"}, catch_exceptions=False
    )
    assert said.exit_code == 0
    assert (
        f"accepted as they are: {half.n_days} days from {first}, of the unfinished import of {path}"
        in said.output
    )
    assert said.output.endswith("No imported day waits for its replay.\n")
    with store_of(home) as store:
        assert store.imports.find_unfinished() == []


def test_days_imported_without_a_replay_can_be_requested_later(rlhf, home, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(home))
    monkeypatch.setattr("rlhf_pipeline.cli.replay.replay_pending", lambda workspace: 0)
    with_pairs(rlhf, tmp_path)
    rlhf(
        "votes",
        write_csv(tmp_path / "votes.csv", [vote(n) for n in range(300)]),
        "--no-replay",
        "--keep-annotators",
    )
    with store_of(home) as store:
        assert store.replays.pending_days() == []
    said = CliRunner().invoke(app, ["replay", "--never-asked"], catch_exceptions=False)
    with store_of(home) as store:
        days = store.replays.pending_days()
    assert len(days) > 1
    assert said.output == f"requested: {len(days)} days from {days[0]} to {days[-1]}\n"
    assert (
        CliRunner().invoke(app, ["replay", "--never-asked"]).output
        == "no imported day was left out\n"
    )


def test_unfinished_imports_are_not_accepted_while_one_runs(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    with store_of(home) as store:
        store.imports.mark_casting(
            store.imports.start("votes", "/data/votes.csv", {}), ["2016-01-31"]
        )
        with (
            FileLock(home / "imports" / ".lock"),
            pytest.raises(DatasetError, match="is running, so its days are incomplete"),
        ):
            CliRunner().invoke(
                app,
                ["replay", "--unfinished"],
                env={"RLHF_HOME": str(home)},
                catch_exceptions=False,
            )
        assert len(store.imports.find_unfinished()) == 1


KILLER = """
import os, random, signal, sqlite3, sys, time
from pathlib import Path
from rlhf_pipeline.cli import app

folder, n_kills, n_votes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def attempt(name, moment=lambda: None):
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(folder / f"{name}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            app(
                ["import", "votes", str(folder / f"{name}.csv"), "--no-replay"],
                standalone_mode=False)
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if moment():
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def seconds(wait):
    return lambda: time.sleep(wait) or True

def votes(wanted):
    # As soon as so many are in the store, which is between two transactions or within the next one.
    def arrived():
        store = sqlite3.connect(f"file:{os.environ['RLHF_HOME']}/store.db?mode=ro", uri=True)
        while store.execute("SELECT vote_seq FROM heads").fetchone()[0] < wanted:
            time.sleep(0.001)
        store.close()
        return True
    return arrived

began = time.monotonic()
assert attempt("votes-0") == 0
took = time.monotonic() - began
draw = random.Random(7)
for n in range(1, n_kills + 1):
    moment = (
        votes(n * n_votes + draw.randrange(1, n_votes // 2))
        if n % 2
        else seconds(draw.uniform(0, took))
    )
    print(
        attempt(f"votes-{n}", moment),
        attempt(f"votes-{n}"),
        (folder / f"votes-{n}.said").read_text(),
        sep="|", end="~", flush=True)
"""


def test_an_import_killed_at_any_moment_and_repeated_is_whole(rlhf, home, tmp_path):
    n_kills, n_votes = int(os.environ.get("KILLS", "4")), 1_500
    with_pairs(rlhf, tmp_path)
    for n in range(n_kills + 1):
        write_csv(
            tmp_path / f"votes-{n}.csv",
            [vote(i, annotator=f"ann {n}") | {"task_id": f"file {n}"} for i in range(n_votes)],
        )
    environ = {**os.environ, "RLHF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLER, str(tmp_path), str(n_kills), str(n_votes)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [text.split("|") for text in done.stdout.split("~")[:-1]]
    assert len(outcomes) == n_kills
    assert {repeated for _, repeated, _ in outcomes} == {"0"}, done.stderr
    # the others were done sooner
    assert sum(killed == "-9" for killed, _, _ in outcomes) >= n_kills // 2
    known = []
    for *_, said in outcomes:
        found = re.match(r"([\d,]+) imported, ([\d,]+) already known, 0 merged, 0 rejected", said)
        imported, before = (int(number.replace(",", "")) for number in found.groups())
        assert imported + before == n_votes, said
        known.append(before)
    # killed between two transactions
    assert sum(0 < before < n_votes for before in known) >= max(1, n_kills // 8), known
    assert counts(home) == (40, (n_kills + 1) * n_votes)
    with store_of(home) as store:
        cast = list(store.votes.log(schema=EXPORTED_VOTES).itertuples())
        assert set(states(home)) == {"finished", "failed"}
    assert len({(row.comparison_id, row.annotator_id) for row in cast}) == len(cast)
    moments = {}
    for row in cast:  # within a file the order is that of time, also across a kill
        moments.setdefault(row.task_id, []).append(row.voted_at)
    assert len(moments) == n_kills + 1
    assert all(times == sorted(times) for times in moments.values())
    assert list((home / "imports").glob("staged-*")) == []
