"""A web server of ours to measure: `rlhf serve` on a home of its own, with people, tokens and work.
Prints nothing; see bench_votes.
"""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pandas as pd
import psutil

from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import (
    AnnotationRules,
    AnnotatorKind,
    Choice,
    NewVote,
    Role,
    utc_now,
)
from rlhf_pipeline.store import Store

ROOT = Path(__file__).parent.parent
RLHF = str(Path(sys.executable).with_name("rlhf"))
SECONDS_TO_START = 60
PROJECT = "bench"
WORDS = (
    "Because people should never always think about money and the right or wrong of laws, freedom "
    "and school. " * 3
)


def open_store(url: str) -> Store:
    return Store.open(url)


def fill_store(url: str, *, n_annotators: int, n_comparisons: int, overlap: int) -> list[str]:
    """Make tables, people and work; the annotators' tokens."""
    rows = {
        "day": utc_now().date().isoformat(),
        "comparison_id": [f"bench-{i:06d}" for i in range(n_comparisons)],
        "prompt_id": [f"p{i // 4}" for i in range(n_comparisons)],
        "prompt": [f"{i // 4}: {WORDS[:90]}?" for i in range(n_comparisons)],
        "completion_a_id": [f"a{i}" for i in range(n_comparisons)],
        "completion_b_id": [f"b{i}" for i in range(n_comparisons)],
        "completion_a": WORDS,
        "completion_b": [f"{i} {WORDS}" for i in range(n_comparisons)],
        "model_version_a": "bench.policy@1",
        "model_version_b": "bench.policy@1",
        "category": "factual",
        "repeat_of": None,
        "position": range(n_comparisons),
        "seed": 0,
    }
    frame = check_frame(pd.DataFrame(rows), COMPARISONS)
    with open_store(url) as store:
        store.migrate()
        store.comparisons.publish(frame, published_at=utc_now())
        store.cards.offer(frame["comparison_id"].tolist(), overlap=overlap)
        store.rules.put(
            AnnotationRules(overlap=overlap, prefetch=20),
            after=store.rules.latest()[0],
            actor="bench",
        )
        tokens = []
        for n in range(n_annotators):
            user = store.users.add(
                email=f"annotator{n}@bench.test",
                name=f"Annotator {n}",
                roles=[Role.ANNOTATOR],
                actor="bench",
            )
            tokens.append(
                store.tokens.issue(
                    user.user_id, kind="api", lifetime=timedelta(days=1), actor="bench"
                )[0]
            )
    return tokens


def make_reader_token(url: str) -> str:
    """A token of somebody who may read everything."""
    return _issue_token(url, "Reader", Role.ADMIN)


def make_annotator_token(url: str) -> str:
    """A token of somebody who votes."""
    return _issue_token(url, "Voter", Role.ANNOTATOR)


def make_curator_token(url: str, n_judged: int) -> str:
    """A token of somebody who reads others' votes on what they judged alone, which lies all over
    the project.
    """
    token = _issue_token(url, "Curator", Role.CURATOR)
    with open_store(url) as store:
        curator = store.users.with_email("curator@bench.test")
        assert curator is not None
        ids = store.comparisons.find_offerable_ids()
        own_ids = ids[:: max(1, len(ids) // n_judged)][:n_judged]
        store.votes.cast_many(
            [
                NewVote(
                    comparison_id=comparison_id,
                    annotator_id=curator.user_id,
                    annotator_kind=AnnotatorKind.HUMAN,
                    choice=Choice.A,
                    strength=1,
                    voted_at=utc_now(),
                    origin="api",
                    idempotency_key=f"curator/{comparison_id}",
                )
                for comparison_id in own_ids
            ]
        )
    return token


def _issue_token(url: str, name: str, role: Role) -> str:
    with open_store(url) as store:
        user = store.users.add(
            email=f"{name.lower()}@bench.test", name=name, roles=[role], actor="bench"
        )
        return store.tokens.issue(
            user.user_id, kind="api", lifetime=timedelta(days=1), actor="bench"
        )[0]


def server_environment(url: str, home: Path) -> dict[str, str]:
    ours = {
        "RLHF_HOME": str(home),
        "RLHF_PROJECT": PROJECT,
        "RLHF_START_DAY": "2024-01-01",
        "PYTHONPATH": str(ROOT),
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    return (
        others
        | ours
        | {"RLHF_DATABASE_URL": url, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    )


@contextlib.contextmanager
def run_server(url: str, home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of `rlhf serve` on this store, as an operator starts it; it ends with the
    block.
    """
    port = find_free_port()
    home.mkdir(parents=True, exist_ok=True)
    command = [RLHF, "serve", "--port", str(port)]
    with (home / "server.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            cwd=home,
            env=server_environment(url, home),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for_server(child, port, home / "server.log")
        yield f"http://127.0.0.1:{port}", psutil.Process(child.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_for_server(child: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/api/v1/healthz")
            if connection.getresponse().status == 200:
                return
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"`rlhf serve` did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process and its living children, threads included."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
