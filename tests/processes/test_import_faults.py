"""Files that are broken, disks that are full, imports that are killed or meet another: a clear
message, nothing doubled, nothing lost.
"""

import csv
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.errors import ArtefactError, DatasetError, StoreError
from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.store import Store

PAIRS = [
    {"pair_id": f"p{n}", "prompt": f"prompt {n}", "response_a": f"yes {n}", "response_b": f"no {n}"}
    for n in range(40)
]
TAKE = ("import", "preferences", "--yes", "--no-replay")
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
            .invoke(app, [*TAKE, *map(str, arguments)], env=environ, catch_exceptions=False)
            .output.partition("\n")[2]
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
    rlhf(write_csv(tmp_path / "pairs.csv", PAIRS), "--project", "real")


def counts(home):
    with store_of(home) as store:
        store.audit.verify()
        return store.comparisons.count(), store.votes.count()


def states(home):
    with store_of(home) as store:
        return [i.state for i in store.imports.all()]


def test_truncated_file_casts_no_votes_until_corrected(rlhf, home, tmp_path):
    with_pairs(rlhf, tmp_path)
    path = write_csv(tmp_path / "votes.csv", [vote(n) for n in range(5_000)])
    whole = path.read_text()
    path.write_text(whole + 'p1,"ann')
    with pytest.raises(DatasetError, match="line 5002: a quoted cell that opens here never ends"):
        rlhf(path)
    assert counts(home) == (40, 0)
    assert states(home) == ["finished", "failed"]
    assert list((home / "imports").glob("staged*")) == []
    path.write_text(whole)
    assert rlhf(path).startswith("votes: 5,000 imported, 0 already known, 0 merged, 0 rejected")


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
        rlhf(path, "--project", "real", in_home=home)
    grow("100m")
    n_before = counts(home)[0]
    assert 0 < n_before < 3_000
    assert rlhf(path, in_home=home).startswith(
        f"pairs: {3_000 - n_before:,} imported, {n_before:,} already known"
    )
    votes = [vote(n) | {"reason": "x" * 2_000} for n in range(3_000)]
    grow(f"{sum(p.stat().st_size for p in home.rglob('*') if p.is_file()) // MEGABYTE + 4}m")
    with pytest.raises(
        ArtefactError, match=r"imports.*No space left on device\. Free some space and run again"
    ):
        rlhf(write_csv(tmp_path / "votes.csv", votes), in_home=home)
    assert counts(home) == (3_000, 0)
    assert list((home / "imports").glob("staged*")) == []
    grow("100m")
    assert rlhf(tmp_path / "votes.csv", in_home=home).startswith(
        "votes: 3,000 imported, 0 already known"
    )


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
                ["import", "preferences", str(folder / f"{name}.csv"), "--yes", "--no-replay"],
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
        while store.execute("SELECT vote_seq FROM chain_heads").fetchone()[0] < wanted:
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


def test_killed_and_repeated_import_is_complete(rlhf, home, tmp_path):
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
    for *_, output in outcomes:
        report = re.search(
            r"votes: ([\d,]+) imported, ([\d,]+) already known, 0 merged, 0 rejected", output
        )
        imported, before = (int(number.replace(",", "")) for number in report.groups())
        assert imported + before == n_votes, output
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
    assert list((home / "imports").glob("staged*")) == []
