"""Consensus as it is listed: what is disputed comes in the order in which somebody should decide
it, and no page reads without end.
"""

import itertools

import httpx
import pytest

from rlhf_pipeline.core.records import Choice, NewVote, utc_now
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.consensus import queries as consensus
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web

KEYS = itertools.count()


@pytest.fixture
def cast_choices(web: Web):
    def cast(comparison_id: str, choices: str) -> None:
        """One vote of somebody new per letter, of people."""
        for choice in choices:
            n = next(KEYS)
            web.store.votes.cast(
                NewVote(
                    comparison_id=comparison_id,
                    annotator_id=f"u{n}",
                    annotator_kind="human",
                    voted_at=utc_now(),
                    origin="api",
                    choice={"a": Choice.A, "b": Choice.B, "t": Choice.TIE}[choice],
                    idempotency_key=f"k{n}",
                )
            )

    return cast


def pages(client: httpx.Client, **params: object) -> list[list[str]]:
    page_ids, cursor = [], None
    while True:
        page = client.get(
            "/consensus", params={**params, **({"cursor": cursor} if cursor else {})}
        ).json()
        page_ids.append([item["comparison_id"] for item in page["items"]])
        cursor = page["next"]
        if cursor is None:
            return page_ids


SAID = {
    "c0000": "aab",
    "c0001": "aaa",
    "c0002": "abt",
    "c0003": "aabb",
    "c0004": "aaabb",
    "c0005": "ab",
    "c0006": "bb",
    "c0007": "a",
}
# a third; no winner of four votes, of two; 60 %. Two thirds of c0000 are agreement
IN_ORDER = ["c0002", "c0003", "c0005", "c0004"]


@pytest.mark.parametrize("limit", [2, 50])
def test_disputes_come_the_most_evenly_split_first(web: Web, cast_choices, limit: int):
    web.publish(8)
    for c, choices in SAID.items():
        cast_choices(c, choices)
    curator = web.client("engineer")
    page_ids = pages(curator, state="disputed", limit=limit)
    assert [c for page in page_ids for c in page] == IN_ORDER
    assert all(len(page) <= limit for page in page_ids)
    assert pages(curator, limit=50) == [
        ["c0007", "c0006", "c0005", "c0004", "c0003", "c0002", "c0001", "c0000"]
    ]


def test_page_of_disputes_is_bounded_and_continues(web: Web, cast_choices, monkeypatch):
    monkeypatch.setattr(consensus, "LOOKS_AT", 3)
    web.publish(8)
    for c, choices in SAID.items():
        cast_choices(c, choices)
    page_ids = pages(web.client("engineer"), state="disputed", limit=2)
    assert [c for page in page_ids for c in page] == ["c0005", "c0002", "c0003", "c0004"], (
        "of c0005 to c0007, of c0002 to c0004, of the rest"
    )


def test_page_without_a_match_links_to_the_next(paged: Web, monkeypatch):
    monkeypatch.setattr(consensus, "LOOKS_AT", 2)
    ids = paged.publish(3)
    curator = paged.client("curator")
    for comparison_id in ids:
        body = {"comparison_id": comparison_id, "choice": "a"}
        key = {"Idempotency-Key": comparison_id}
        curator.post("/votes", json=body, headers=key).raise_for_status()
    page = paged.browser(curator.user).get(f"{paged.url}/consensus?state=agreed").text
    assert "None on this page" in page
    assert ">More</a>" in page


def test_votes_during_paging_do_not_shift_pages(web: Web, cast_choices, monkeypatch):
    monkeypatch.setattr(consensus, "LOOKS_AT", 4)
    web.publish(9)
    for c in ("c0000", "c0001", "c0002", "c0003", "c0004", "c0005"):
        cast_choices(c, "ab")
    curator = web.client("engineer")
    first = curator.get("/consensus", params={"state": "disputed", "limit": 2}).json()
    assert [item["comparison_id"] for item in first["items"]] == ["c0002", "c0003"]
    cast_choices("c0005", "ab")
    cast_choices("c0008", "ab")
    second = curator.get(
        "/consensus", params={"state": "disputed", "limit": 2, "cursor": first["next"]}
    ).json()
    assert [item["comparison_id"] for item in second["items"]] == ["c0004"]
    third = curator.get(
        "/consensus", params={"state": "disputed", "limit": 2, "cursor": second["next"]}
    ).json()
    assert [item["comparison_id"] for item in third["items"]] == ["c0000", "c0001"]


def test_adjudicated_comparison_leaves_the_disputed_list(web: Web, cast_choices):
    web.publish(8)
    for c, choices in SAID.items():
        cast_choices(c, choices)
    engineer = web.client("engineer")
    for c, choice in (("c0003", "a"), ("c0005", "tie")):
        decided = engineer.post(
            "/consensus:decide", json={"comparison_id": c, "choice": choice, "reason": "checked"}
        )
        assert (decided.status_code, decided.json()["choice"]) == (201, choice)

    def ids(state: str) -> list[str]:
        return [c for page in pages(engineer, state=state, limit=2) for c in page]

    assert ids("disputed") == ["c0002", "c0004"]
    assert ids("decided") == ["c0005", "c0003"]
    (first, *_) = engineer.get("/consensus", params={"state": "decided"}).json()["items"]
    assert (first["adjudication"]["reason"], first["state"]) == ("checked", "decided")
    assert (first["adjudication"]["decided_by"], first["choice"]) == (
        *(engineer.user.user_id, "tie"),
    )
    assert not {*ids("agreed"), *ids("open")} & {"c0003", "c0005"}
    cast_choices("c0003", "b")  # a later vote changes nothing
    assert ids("disputed") == ["c0002", "c0004"]
    for status in (204, 404):
        undone = engineer.post("/consensus:undo", json={"comparison_id": "c0003"})
        assert undone.status_code == status
    assert "c0003" in ids("disputed")
    unknown = {"comparison_id": "none", "choice": "a", "reason": "x"}
    assert engineer.post("/consensus:decide", json=unknown).status_code == 404
    assert engineer.post("/consensus:decide", json=unknown | {"reason": ""}).status_code == 422


def test_page_adjudicates_undoes_and_offers_to_an_expert(web: Web, cast_choices):
    (comparison_id,) = web.publish(1, offer=False)
    cast_choices(comparison_id, "ab")
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        paged = Web(web.store, web.settings, server.url, web.clock)
        admin, expert = paged.browser(paged.add("admin")), paged.add("annotator")
        admin.follow_redirects = True
        url = f"{server.url}/consensus"
        assert "Ask for a judgement" in admin.get(url).text
        form = {"comparison_id": comparison_id, "annotator_id": expert.user_id}
        html = admin.post(f"{url}/offer", data=form).text
        assert f"Requested 1 judgement of 1 comparison from {expert.name}." in html
        decided = {"comparison_id": comparison_id, "choice": "b", "reason": "the second <is> right"}
        missing = admin.post(f"{url}/decide", data=decided | {"reason": " "})
        assert (missing.status_code, "reason" in missing.text) == (422, True)
        long = admin.post(f"{url}/decide", data=decided | {"reason": "<b>" * 700}).text
        assert 'value="b" required checked>' in long
        assert f'value="{"&lt;b&gt;" * 700}"' in long
        opened = '<details name="row" open>'
        assert long.index(opened) < long.index('role="alert"') < long.index("fieldset")
        gone = {"comparison_id": comparison_id, "annotator_id": paged.add("auditor").user_id}
        assert opened in admin.post(f"{url}/offer", data=gone).text
        elsewhere = admin.post(f"{url}/decide", data=decided | {"comparison_id": "none"}).text
        assert 'role="alert"' in elsewhere
        assert opened not in elsewhere
        answer = admin.post(f"{url}/decide", params={"state": "all"}, data=decided)
        html = answer.text
        assert "Decided: B better." in html
        assert "Decided: B better." not in admin.get(answer.url).text  # a reload sends nothing
        assert "the second &lt;is&gt; right" in html
        assert "No disputes" in admin.get(url).text
        assert "Undo the decision" in admin.get(url, params={"state": "decided"}).text
        undone = admin.post(f"{url}/undo", data={"comparison_id": comparison_id}).text
        assert "The decision is undone" in undone
        assert "Ask for a judgement" in undone
