"""Comparisons of one category: by the API, the client and the page, to readers who may know it."""

import pytest

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


@pytest.fixture
def kinds(web: Web) -> dict[str, set[str]]:
    """Ids by category, of which there are more than a page has."""
    coding = web.publish(70, prefix="x", category="coding")
    return {"coding": set(coding), "safety": set(web.publish(5, prefix="y", category="safety"))}


def test_list_is_filtered_by_category(web: Web, kinds: dict[str, set[str]]):
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
    assert {item["comparison_id"] for item in items} == kinds["coding"]
    assert len(items) == 70
    assert {item["category"] for item in items} == {"coding"}
    assert client.get("/comparisons", params={"category": "poetry"}).json() == {
        "items": [],
        "next": None,
    }
    assert len(client.get("/comparisons", params={"limit": 200}).json()["items"]) == 75


@pytest.mark.parametrize("word", ["a\x00b", "x" * 201])
def test_invalid_category_is_refused(paged: Web, word: str):
    assert paged.client("auditor").get("/comparisons", params={"category": word}).status_code == 422
    page = paged.browser(paged.add("auditor")).get(
        f"{paged.url}/comparisons", params={"category": word}
    )
    assert page.status_code == 422
