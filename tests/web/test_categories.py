"""Comparisons of one category: by the API, the client and the page, to readers who may know it."""

import csv
import io

import pytest

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


@pytest.fixture
def kinds(web: Web) -> dict[str, set[str]]:
    """Ids by category, of which there are more than a page has."""
    coding = web.publish(70, prefix="x", category="coding")
    return {"coding": set(coding), "safety": set(web.publish(5, prefix="y", category="safety"))}


def test_the_list_is_of_the_category_that_is_asked_for(web: Web, kinds: dict[str, set[str]]):
    client = web.client("auditor")
    items, cursor = [], None
    while True:
        page = client.get(
            "/comparisons",
            params={"category": "coding", "limit": 30} | ({"cursor": cursor} if cursor else {}),
        ).json()
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert {one["comparison_id"] for one in items} == kinds["coding"]
    assert len(items) == 70
    assert {one["category"] for one in items} == {"coding"}
    assert client.get("/comparisons", params={"category": "poetry"}).json() == {
        "items": [],
        "next": None,
    }
    assert len(client.get("/comparisons", params={"limit": 200}).json()["items"]) == 75


@pytest.mark.parametrize("word", ["a\x00b", "x" * 201])
def test_a_word_that_cannot_be_a_category_is_refused(paged: Web, word: str):
    assert paged.client("auditor").get("/comparisons", params={"category": word}).status_code == 422
    page = paged.browser(paged.add("auditor")).get(
        f"{paged.url}/comparisons", params={"category": word}
    )
    assert page.status_code == 422


def test_who_votes_is_told_the_category_of_what_was_judged_alone(
    web: Web, kinds: dict[str, set[str]]
):
    curator = web.client("curator")
    assert curator.get("/comparisons", params={"category": "safety"}).json()["items"] == []
    assert web.client("admin").get("/comparisons", params={"category": "safety"}).json()["items"]


def test_nothing_of_a_list_tells_a_blind_reader_that_there_is_more_of_a_category(
    web: Web, kinds: dict[str, set[str]]
):
    """Where `next` began told which comparison is a correction, and so which text its author
    preferred.
    """
    author, curator = web.client("annotator"), web.client("curator")
    correction = {"kind": "correction", "completion": "5", "correction": "4"}
    made = [
        author.post("/feedback", json={**correction, "prompt": f"{n}+2?"}).json()["comparison_id"]
        for n in range(5)
    ]
    for n in (1, 2, 3):
        assert curator.get(
            "/comparisons", params={"category": "correction", "limit": n}
        ).json() == {"items": [], "next": None}
    for one in (made[1], made[3]):
        sent = {"comparison_id": one, "choice": "a"}
        assert (
            curator.post("/votes", json=sent, headers={"Idempotency-Key": one}).status_code == 201
        )
    first = curator.get("/comparisons", params={"category": "correction", "limit": 1}).json()
    second = curator.get(
        "/comparisons", params={"category": "correction", "limit": 1, "cursor": first["next"]}
    ).json()
    assert {page["items"][0]["comparison_id"] for page in (first, second)} == {made[1], made[3]}
    last = curator.get(
        "/comparisons", params={"category": "correction", "limit": 1, "cursor": second["next"]}
    ).json()
    assert last == {"items": [], "next": None}
    assert (
        len(
            web.client("admin")
            .get("/comparisons", params={"category": "correction"})
            .json()["items"]
        )
        == 5
    )


def test_the_page_and_its_file_keep_to_the_category(paged: Web, kinds: dict[str, set[str]]):
    browser = paged.browser(paged.add("auditor"))
    page = browser.get(f"{paged.url}/comparisons", params={"category": "coding"}).text
    assert 'value="coding"' in page
    assert "category=coding&amp;cursor=" in page
    assert not any(one in page for one in kinds["safety"])
    rows = list(
        csv.DictReader(
            io.StringIO(
                browser.get(f"{paged.url}/comparisons.csv", params={"category": "safety"}).text
            )
        )
    )
    assert {row["comparison_id"] for row in rows} == kinds["safety"]
    assert (
        "No matching comparisons here"
        in browser.get(f"{paged.url}/comparisons", params={"category": "poetry"}).text
    )
    assert (
        "not listed, because their category"
        in paged.browser(paged.add("curator"))
        .get(f"{paged.url}/comparisons", params={"category": "coding"})
        .text
    )
