"""Consensus by the annotator model over HTTP: what was fitted is read, what came since is said, and
nothing is made up before.
"""

import csv
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta

import httpx
import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.records import Choice, NewVote, utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import joint_model
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.consensus import annotator_fits
from rlhf_pipeline.web.consensus import queries as consensus
from rlhf_pipeline.web.consensus import routes as consensus_page
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, ShiftedClock, Web
from tests.web.databases import on_sqlite

KEYS = itertools.count()
STAGE, PART = LABELS_FRAME


def judge(
    web: Web, comparison_id: str, choices: str, annotator_id: str | None = None, kind: str = "human"
) -> int:
    """One vote of somebody new per letter; the seq of the last."""
    for choice in choices:
        n = next(KEYS)
        web.store.votes.cast(
            NewVote(
                comparison_id=comparison_id,
                annotator_id=annotator_id or f"u{n}",
                annotator_kind=kind,
                voted_at=utc_now(),
                origin="api",
                choice={"a": Choice.A, "b": Choice.B, "t": Choice.TIE, "s": Choice.SKIP}[choice],
                idempotency_key=f"k{n}",
            )
        )
    return web.store.votes.max_seq()


def fit(web: Web, up_to_seq: int, **p_a: tuple[float, float, float]) -> None:
    """Leave labels where the asset leaves them: chance of a and its ends, by comparison."""
    rows = [
        {
            "comparison_id": c,
            "prompt_id": "p",
            "utility": 0.0,
            "sd": 1.0,
            "p_a": p,
            "p_low": low,
            "p_high": high,
            "n_votes": 2,
        }
        for c, (p, low, high) in p_a.items()
    ]
    frame = (
        check_frame(pd.DataFrame(rows).assign(max_seq=up_to_seq), SOFT_LABELS)
        if rows
        else SOFT_LABELS.empty_frame()
    )
    Artefacts(web.settings.frames).write_frame(STAGE, frame, PART)


def listed(client: httpx.Client, **params: object) -> list[dict]:
    found, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        answer = client.get("/consensus", params={"method": "joint_model", **params, **more})
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["next"]
        if cursor is None:
            return found


def ids(items: list[dict]) -> list[str]:
    return [item["comparison_id"] for item in items]


def test_before_a_fit_there_is_no_verdict_and_it_says_how_to_get_one(web: Web):
    (c,) = web.publish(1, overlap=2)
    judge(web, c, "ab")
    reader = web.client("engineer")
    refused = reader.get("/consensus", params={"method": "joint_model"})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:rlhf:problem:not_fitted")
    assert "annotator_model" in refused.json()["detail"]
    fit(web, 1)  # to no judgement
    assert (
        reader.get("/consensus", params={"method": "joint_model", "state": "disputed"}).status_code
        == 409
    )
    assert ids(reader.get("/consensus").json()["items"]) == [c]
    assert reader.get("/consensus").json()["items"][0]["p_a"] is None


@pytest.mark.parametrize("limit", [1, 50])
def test_verdicts_are_listed_with_their_intervals_the_nearest_to_one_half_first(
    web: Web, limit: int
):
    sure, near, nearer, unknown, alone = web.publish(5, overlap=2)
    for c in (sure, near, nearer, unknown):
        judge(web, c, "ab")
    seq = judge(web, alone, "a")
    fit(
        web,
        seq,
        **{
            sure: (0.1, 0.05, 0.2),
            near: (0.7, 0.4, 0.9),
            nearer: (0.52, 0.3, 0.7),
            alone: (0.9, 0.8, 0.95),
        },
    )
    reader = web.client("engineer")
    assert ids(listed(reader, state="disputed", limit=limit)) == [nearer, near]
    assert ids(listed(reader, state="open", limit=limit)) == [alone]
    assert ids(listed(reader, limit=limit)) == [alone, nearer, near, sure]
    (agreed,) = listed(reader, state="agreed", limit=limit)
    assert {
        name: agreed[name]
        for name in ("comparison_id", "choice", "share", "low", "high", "p_a", "p_low", "p_high")
    } == {
        "comparison_id": sure,
        "choice": "b",
        "share": 0.9,
        "low": 0.8,
        "high": 0.95,
        "p_a": 0.1,
        "p_low": 0.05,
        "p_high": 0.2,
    }
    assert (agreed["up_to_seq"], agreed["n_since"], agreed["n_a"], agreed["n_b"]) == (seq, 0, 1, 1)


def test_what_was_judged_since_the_fit_is_said_and_a_newer_fit_is_found(web: Web):
    known, new = web.publish(2, overlap=2)
    seq = judge(web, known, "ab")
    fit(web, seq, **{known: (0.9, 0.8, 0.95)})
    reader = web.client("engineer")
    assert [(one["comparison_id"], one["n_since"]) for one in listed(reader)] == [(known, 0)]
    judge(web, known, "b")
    later = judge(web, new, "ab")
    assert [
        (one["comparison_id"], one["n_votes"], one["n_since"], one["p_a"]) for one in listed(reader)
    ] == [(known, 3, 1, 0.9)]
    fit(web, later, **{known: (0.6, 0.3, 0.8), new: (0.5, 0.2, 0.8)})
    assert [(one["comparison_id"], one["n_since"], one["up_to_seq"]) for one in listed(reader)] == [
        (new, 0, later),
        (known, 0, later),
    ]


def test_disputes_are_read_stretch_by_stretch_as_with_votes(
    web: Web, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consensus, "LOOKS_AT", 3)
    made = web.publish(7, overlap=2)
    for c in made:
        seq = judge(web, c, "ab")
    fit(web, seq, **{c: (0.5 + i / 100, 0.2, 0.8) for i, c in enumerate(made) if i != 5})
    found = ids(listed(web.client("engineer"), state="disputed", limit=2))
    assert found == [made[i] for i in (4, 6, 1, 2, 3, 0)], (
        "of c0004 to c0006, of c0001 to c0003, of the rest; c0005 is not known"
    )


def test_voters_get_no_verdict_that_rests_on_all_votes(web: Web):
    mine, other = web.publish(2, overlap=2)
    judge(web, mine, "a")
    seq = judge(web, other, "a")
    fit(web, seq, **{mine: (0.9, 0.8, 0.95), other: (0.9, 0.8, 0.95)})
    curator = web.client("curator")
    assert ids(listed(web.client("engineer"))) == [other, mine]
    judge(web, other, "b", curator.user.user_id)
    refused = curator.get("/consensus", params={"method": "joint_model"})
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:rlhf:problem:blind")
    assert [one["comparison_id"] for one in curator.get("/consensus").json()["items"]] == [other]
    assert (
        web.client("annotator").get("/consensus", params={"method": "joint_model"}).status_code
        == 403
    )


@on_sqlite
def test_labels_that_cannot_be_read_are_an_error_and_no_verdict(web: Web):
    (c,) = web.publish(1, overlap=2)
    fit(web, judge(web, c, "ab"), **{c: (0.9, 0.8, 0.95)})
    reader, path = web.client("engineer"), Artefacts(web.settings.frames).path(STAGE, PART)
    assert ids(listed(reader)) == [c]
    path.write_bytes(b"no parquet")
    broken = reader.get("/consensus", params={"method": "joint_model"})
    assert (broken.status_code, broken.json()["type"]) == (
        503,
        "urn:rlhf:problem:annotator_model_unreadable",
    )
    assert str(path) in broken.json()["detail"]
    assert reader.get("/consensus").status_code == 200
    fit(web, 2, **{c: (0.2, 0.1, 0.3)})
    assert listed(reader)[0]["p_a"] == 0.2


@pytest.mark.parametrize("limit", [1, 3, 7, 200])
def test_of_mirrored_votes_every_dispute_is_listed_once(web: Web, limit: int):
    """Mirrored votes give p and 1 - p: shares that are equal but for their last bit, many of
    each.
    """
    made = web.publish(24, overlap=2)
    for i, c in enumerate(made):
        for annotator_id, choice in zip(
            ("x", "y", "z"), ("aab", "bba", "aba", "bab")[i % 4], strict=True
        ):
            seq = judge(web, c, choice, annotator_id)
    labels = joint_model(
        counting(web.store.votes.log(comparison_ids=made)), web.store.comparisons.with_ids(made)
    ).labels
    fit(
        web,
        seq,
        **{
            c: ((p, 1 - p)[i % 2], 0.01, 0.99)
            for i, (c, p) in enumerate(zip(made, labels["p_a"].clip(0.41), strict=True))
        },
    )
    found = listed(web.client("engineer"), state="disputed", limit=limit)
    shares = [one["share"] for one in found]
    assert len(set(shares)) > len({round(share, 9) for share in shares}), (
        "some differ by rounding alone"
    )
    assert sorted(ids(found)) == made
    assert ids(found) == ids(listed(web.client("engineer"), state="disputed", limit=200))


@pytest.mark.parametrize("state", [None, "disputed"])
def test_a_list_that_was_begun_by_one_fit_is_not_gone_on_with_by_another(
    web: Web, state: str | None
):
    made = web.publish(4, overlap=2)
    for c in made:
        seq = judge(web, c, "ab")
    fit(web, seq, **{c: (0.5 + i / 100, 0.2, 0.8) for i, c in enumerate(made)})
    reader = web.client("engineer")
    asked = {"method": "joint_model", "limit": 2} | ({"state": state} if state else {})
    begun = reader.get("/consensus", params=asked).json()
    assert reader.get("/consensus", params=asked | {"cursor": begun["next"]}).status_code == 200
    # the same votes, fitted otherwise
    fit(web, seq, **{c: (0.6 - i / 100, 0.2, 0.8) for i, c in enumerate(made)})
    refused = reader.get("/consensus", params=asked | {"cursor": begun["next"]})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:rlhf:problem:fit_changed")
    assert "first page" in refused.json()["detail"]
    again = reader.get("/consensus", params=asked).json()
    rest = reader.get("/consensus", params=asked | {"cursor": again["next"]}).json()
    assert sorted(ids(again["items"] + rest["items"])) == made
    by_votes = {name: value for name, value in asked.items() if name != "method"}
    assert (
        reader.get("/consensus", params=by_votes | {"cursor": again["next"]}).status_code == 422
    ), "majority's cursor is another"


@pytest.fixture
def pages(
    settings: Settings, open_store: Callable[[], Store], clock: ShiftedClock
) -> Iterator[Web]:
    store = open_store()
    with WebServer(create_app(settings, store, cache_times=UNCACHED)) as server:
        yield Web(store, settings, server.url, clock)


def reader_of(pages: Web) -> httpx.Client:
    """An engineer's browser, which asks for pages."""
    user = pages.add("engineer")
    client = httpx.Client(base_url=pages.url, headers={"Origin": pages.url}, timeout=60)
    secret, _ = pages.store.tokens.issue(
        user.user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
    )
    assert client.post("/api/v1/auth/redeem", json={"token": secret}).status_code == 204
    return client


def test_the_page_says_how_many_votes_of_people_came_since_the_fit(
    pages: Web, monkeypatch: pytest.MonkeyPatch
):
    c, d = pages.publish(2, overlap=2)
    fit(pages, judge(pages, c, "ab"), **{c: (0.6, 0.2, 0.8)})
    reader = reader_of(pages)

    def read_page() -> str:
        return " ".join(reader.get("/consensus", params={"method": "joint_model"}).text.split())

    assert "up to number 2. No votes were cast since then" in read_page()
    judge(pages, d, "ab", kind="machine")
    assert "up to number 2. No votes were cast since then" in read_page(), (
        "machines teach it nothing"
    )
    judge(pages, d, "as")
    assert "up to number 2. 2 votes were cast since then" in read_page()
    monkeypatch.setattr(consensus, "COUNTS_AT_MOST", 3)
    assert "up to number 2. Of the next 3 votes, 1 is by people" in read_page()


def test_a_page_of_another_fit_says_so_and_lists_nothing(
    pages: Web, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consensus_page, "SHOWN", 1)
    c, d = pages.publish(2, overlap=2)
    judge(pages, c, "ab")
    seq = judge(pages, d, "ab")
    fit(pages, seq, **{c: (0.6, 0.2, 0.8), d: (0.55, 0.2, 0.8)})
    reader, asked = reader_of(pages), {"method": "joint_model"}
    cursor = reader.get("/consensus", params=asked).text.split("cursor=")[1].split('"')[0]
    assert (
        reader.get("/consensus", params=asked | {"cursor": cursor}).text.count(
            '<article class="row"'
        )
        == 1
    )
    fit(pages, seq, **{c: (0.6, 0.1, 0.8), d: (0.55, 0.1, 0.8)})
    changed = reader.get("/consensus", params=asked | {"cursor": cursor})
    assert (changed.status_code, changed.text.count('<article class="row"')) == (200, 0)
    assert "fitted again" in changed.text


class Turning:
    """Another fit each time somebody asks."""

    def __init__(self, fits: list[annotator_fits.AnnotatorFit]):
        self.fits = itertools.cycle(fits)

    def get_newest(self) -> annotator_fits.AnnotatorFit:
        return next(self.fits)


@on_sqlite
def test_a_download_is_of_one_fit_from_its_first_line_to_its_last(
    settings: Settings,
    open_store: Callable[[], Store],
    clock: ShiftedClock,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(consensus_page, "AT_ONCE", 1)
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    with WebServer(app) as server:
        pages = Web(app.state.site.store, settings, server.url, clock)
        made = pages.publish(3, overlap=2)
        for c in made:
            seq = judge(pages, c, "ab")
        fits = []
        for p in (0.52, 0.6):
            fit(pages, seq, **{c: (p + i / 100, 0.2, 0.8) for i, c in enumerate(made)})
            fits.append(
                annotator_fits.AnnotatorFits(settings, app.state.site.store, UNCACHED).get_newest()
            )
        app.state.site.annotator_fits = Turning([one for one in fits if one is not None])
        rows = list(
            csv.DictReader(
                reader_of(pages)
                .get("/consensus.csv", params={"method": "joint_model"})
                .text.splitlines()
            )
        )
    assert [row["comparison_id"] for row in rows] == made
    assert [float(row["p_a"]) for row in rows] == pytest.approx([0.52, 0.53, 0.54])
