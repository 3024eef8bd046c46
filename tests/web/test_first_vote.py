"""From an empty home to the first stored vote, as somebody new does it: few steps, far below five
minutes.
"""

import csv
import json
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.serving import RLHF, server_environment
from tests.web.served import Served, served

MOST_STEPS = 6
MINUTES = 5.0
PAIRS = "prompt,completion_a,completion_b\nName a prime above 20.,23,21\n"


@pytest.fixture
def server(tmp_path: Path):
    with served(f"sqlite:///{tmp_path / 'home' / 'store.db'}", tmp_path / "home") as server:
        yield server


def test_the_first_vote_is_stored_within_five_minutes_and_six_steps(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(PAIRS)
    steps: list[tuple[str, float]] = []
    begun = time.monotonic()

    def step(what: str) -> None:
        steps.append((what, time.monotonic() - begun))

    def rlhf(*arguments: object) -> None:
        subprocess.run(
            [RLHF, *map(str, arguments)],
            cwd=tmp_path,
            env=server_environment(server.url, server.home),
            check=True,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
        )

    assert not server.home.exists()
    server.start()
    link = next(word for word in server.log.read_text().split() if "/login?token=" in word)
    step("rlhf serve")
    browser = httpx.Client(
        base_url=f"{server.address}/api/v1", headers={"Origin": server.address}, timeout=60
    )
    assert (
        browser.post("/auth/redeem", json={"token": link.partition("token=")[2]}).status_code == 204
    )
    step("open the link that it printed")
    rlhf("import", "comparisons", pairs, "--offer")
    step("rlhf import comparisons pairs.csv --offer")
    (card,) = browser.post("/assignments:lease", json={"n": 1}).json()["cards"]
    step("see the first card")
    better = "a" if card["left"] == "23" else "b"
    cast = browser.post(
        "/votes",
        json={"assignment_id": card["assignment_id"], "choice": better, "strength": 4},
        headers={"Idempotency-Key": "first"},
    )
    assert cast.status_code == 201
    step("vote")
    seconds = steps[-1][1]
    with server.opened() as store:
        kept = store.votes.get(cast.json()["vote_id"])
        assert (kept.annotator_kind, kept.strength) == ("human", 4)
        store.audit.verify()

    files = {suffix: tmp_path / f"tuples.{suffix}" for suffix in ("jsonl", "csv")}
    for suffix, path in files.items():
        rlhf("export", "tuples", "--format", suffix, "--out", path)
    (as_json,) = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    (as_csv,) = csv.DictReader(files["csv"].open(newline=""))
    for row in (as_json, as_csv):
        assert row["prompt"] == "Name a prime above 20."
        assert row[row["preferred"]] == "23"
    with capsys.disabled():
        print(f"\nfrom an empty home to the first stored vote: {len(steps)} steps, {seconds:.1f} s")
        for what, at in steps:
            print(f"  {at:6.1f} s  {what}")
    assert len(steps) <= MOST_STEPS
    assert seconds < 60 * MINUTES
