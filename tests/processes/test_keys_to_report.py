"""From the first login to the day's report: a person judges by keyboard in a real browser, and the
next tick takes those votes on.

`SCREENSHOTS=/folder pytest tests/pipeline/test_keys_to_report.py` keeps pictures of the annotate
page as it was.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pytest

from rlhf_pipeline.records import Vote, utc_now
from tests.browser.chromium import chromium_or_skip
from tests.browser.hands import all_sent, at_the_desk, vote
from tests.processes.daemon_home import BINARIES, Server
from tests.serving import find_free_port, wait_for_server

# Every key of the scale, a tie and both bad: twenty votes, of which eighteen prefer a side.
KEYS = [*"123467891234678912", "5", "0"]
# What is pictured: theme, width and height in CSS pixels, device pixels to one of them.
PICTURES = {
    "annotate-light": ("light", 1280, 800, 1),
    "annotate-dark": ("dark", 1280, 800, 1),
    "annotate-phone": ("light", 390, 844, 2),
    "annotate-phone-dark": ("dark", 390, 844, 2),
    "annotate-200-percent": ("light", 640, 400, 2),
}


@dataclass
class Sitting:
    """What a person saw and did, and what became of it."""

    project: Any
    link: str
    judged: list[tuple[str, str, str]]
    keys_s: float
    votes: list[Vote]
    asked_before: int


@contextmanager
def serving(project: Any) -> Iterator[tuple[str, Server]]:
    """Address and process of `rlhf serve`, as a new user starts it."""
    port = find_free_port()
    log = project.settings.home / "serve.log"
    server = Server.start(
        [str(BINARIES / "rlhf"), "serve", "--port", str(port)], project.environ, log
    )
    try:
        wait_for_server(server.process, port, log)
        yield f"http://127.0.0.1:{port}", server
        server.process.terminate()
        server.process.wait(20)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def sitting(branch: Any, grown: Any) -> Sitting:
    """A home in which a reward model predicts; today is collected for people; its first visitor
    judges twenty.
    """
    executable = chromium_or_skip()
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is in the dev extra: pip install -e '.[dev]'"
    )
    project = branch(grown, annotators="human", votes_per_request=len(KEYS))
    project.collect(utc_now().date().isoformat(), n=10)
    project.tick("votes")  # what was voted before
    asked_before = len(project.tick("votes").run_requests)
    with serving(project) as (address, server), playwright.sync_playwright() as running:
        link = next(
            word for word in server.text.split() if word.startswith(f"{address}/login?token=")
        )
        browser = running.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(link)
        page.keyboard.press("Enter")  # the button of the link has the focus
        page.wait_for_url(lambda url: "/login" not in url)
        if urlsplit(page.url).path != "/annotate":
            page.goto(f"{address}/annotate")
        at_the_desk(page)
        pictures(browser, context, page)
        started = time.monotonic()
        judged = [cast(page, key) for key in KEYS]
        keys_s = time.monotonic() - started
        all_sent(page)
        browser.close()
    admin = project.store.users.with_email("admin@localhost")
    votes = project.store.votes.page(annotator_id=admin.user_id, limit=100)[::-1]
    return Sitting(project, link, judged, keys_s, votes, asked_before)


def cast(page: Any, key: str) -> tuple[str, str, str]:
    at_the_desk(page)  # a hand this fast may be waiting for its next cards
    return vote(page, key)


def pictures(browser: Any, context: Any, page: Any) -> None:
    """Where somebody asked for them."""
    folder = os.environ.get("SCREENSHOTS")
    if not folder:
        return
    for name, (theme, width, height, scale) in PICTURES.items():
        other = browser.new_context(
            storage_state=context.storage_state(),
            viewport={"width": width, "height": height},
            color_scheme=theme,
            device_scale_factor=scale,
        )
        there = other.new_page()
        there.goto(page.url)
        at_the_desk(there)
        there.wait_for_timeout(300)
        there.screenshot(path=Path(folder) / f"{name}.png")
        there.goto("about:blank")  # gives the cards back
        other.close()
    page.reload()
    at_the_desk(page)


def of_days(project: Any, stage: str, days: set[str]) -> pd.DataFrame:
    return pd.concat([project.files.read_frame(stage, day) for day in sorted(days)])


def words_of(text: str) -> list[str]:
    """Letters only: the page renders Markdown, where "6. Yes" is the sixth item of a list."""
    return re.findall(r"[^\W\d_]+", text)


def test_twenty_keys_are_twenty_votes_in_the_days_snapshot_and_report(
    sitting: Sitting, capsys: pytest.CaptureFixture[str]
) -> None:
    project, votes = sitting.project, sitting.votes
    assert sitting.asked_before == 0
    texts = project.store.comparisons.texts([one.comparison_id for one in votes])
    for key, (prompt, left, _), one in zip(KEYS, sitting.judged, votes, strict=True):
        assert prompt == texts[one.comparison_id].prompt
        of_left = "b" if one.is_swapped else "a"
        text = texts[one.comparison_id]
        assert words_of(left) == words_of(
            text.completion_b if one.is_swapped else text.completion_a
        )
        if key in "1234":
            assert (one.choice, one.strength) == (of_left, 5 - int(key))
        elif key in "6789":
            assert (one.choice, one.strength) == ("b" if of_left == "a" else "a", int(key) - 5)
        else:
            assert (one.choice, one.strength) == ({"5": "tie", "0": "both_bad"}[key], None)

    tick = project.tick("votes")
    assert tick.run_requests, tick.skip_message
    for request in tick.run_requests:
        project.run_request(request, "votes")
    assert project.tick("votes").run_requests == [], "the same votes are asked for once"

    days = {one.day.isoformat() for one in votes}  # two of them around midnight
    snapshot = of_days(project, "votes", days)
    assert sorted(snapshot["vote_id"]) == sorted(one.vote_id for one in votes), (
        "these votes and no other"
    )
    assert set(snapshot["annotator_kind"]) == {"human"}
    assert dict(snapshot["choice"].value_counts()) == dict(
        pd.Series([str(one.choice) for one in votes]).value_counts()
    )
    project.materialise(["preference_pairs"])
    pairs = project.files.read_frame("preference_pairs")
    pairs = pairs[pairs["day"].isin(days)]
    decided = {one.comparison_id for one in votes if one.choice in ("a", "b")}
    assert set(pairs["comparison_id"]) == decided
    log = of_days(project, "reflection_log", days)
    assert set(log.loc[log["vote_id"].notna(), "vote_id"]) == set(snapshot["vote_id"]), (
        "each vote beside the prediction made before it"
    )
    report = of_days(project, "drift_report", days)
    overall = report[report["space"] == "overall"]
    assert set(overall["model_version"]) == {project.judge}
    assert overall["n_current"].sum() == len(decided) == 18
    assert project.store.audit.verify() > 0
    with capsys.disabled():
        print(
            f"\n{len(KEYS)} keys in {sitting.keys_s:.1f} s → {len(votes)} votes of kind human → "
            f"tick {[r.run_key for r in tick.run_requests]} → snapshot of "
            f"{', '.join(sorted(days))}: {len(snapshot)} votes, {len(pairs)} preference pairs → "
            f"drift report: {overall['n_current'].sum()} judged votes, verdict "
            f"{', '.join(overall['verdict'])}"
        )


def test_the_link_of_the_first_start_logs_in_once(sitting: Sitting) -> None:
    import httpx

    with serving(sitting.project) as (address, server):
        answer = httpx.post(
            f"{address}/login",
            data={"token": sitting.link.partition("token=")[2]},
            headers={"Origin": address},
        )
        assert answer.status_code in (401, 403, 422)
        assert server.text.count("/login?token=") == 1, "only the first start prints one"
