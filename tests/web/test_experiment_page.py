"""The page of experiments: who may act, and what its buttons do."""

import re
from collections.abc import Iterator

import pytest

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.policy_versions import register_versions
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite


@pytest.fixture
def released(web: Web) -> Iterator[Web]:
    register_versions(web.settings)
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, web.settings, server.url, web.clock)


@on_sqlite
def test_page_starts_extends_pauses_and_deploys(released: Web) -> None:
    approver = released.browser(released.add("approver"))
    page = f"{released.url}/experiments"
    assert "No experiment yet" in approver.get(page).text
    new = {
        "act": "start",
        "name": "first",
        "treatment": "demo.policy@1",
        "metric": "rating",
    }
    assert approver.post(page, data=new).status_code == 303
    assert approver.post(page, data=new).status_code == 409
    draft = {"name": "second", "treatment_model_id": "demo.policy@3", "status": "draft"}
    calls = released.client("approver")
    address = f"{released.url}/api/models/ab-test"
    planned = draft | {"end_date": "2100-01-01T00:00:00Z"}
    assert calls.post(address, json=planned).status_code == 200
    assert re.search(r'first <span class="tag good">running', approver.get(page).text)
    assert re.search(r"answers\s+10% of", approver.get(page).text)
    reason = {"key": "1", "reason": "more"}
    acts = [
        ("extend", {"share": "0.5"}, 303),
        ("extend", {"share": "0.1"}, 409),
        ("extend", {"share": "many"}, 422),
        ("pause", {}, 303),
        ("resume", {}, 303),
        ("deploy", {}, 303),
        ("end", {}, 409),
    ]
    for act, more, status in acts:
        answer = approver.post(page, data=reason | {"act": act} | more)
        assert (act, answer.status_code) == (act, status)
    first = approver.get(f"{page}?experiment=1").text
    assert "first ended without a winner</h1>" in first
    assert "Winner: inconclusive" in first
    assert re.search(r'Ends\s+<time datetime="2100', approver.get(page).text)
    assert approver.post(page, data={"act": "cancel", "key": "2"}).status_code == 303
    assert "2100" not in approver.get(page).text
    assert [entry["status"] for entry in calls.get(address).json()["items"]] == [
        "cancelled",
        "completed",
    ]
    assert released.store.promotions.champion("demo.policy").version == 1
    auditor = released.browser(released.add("auditor"))
    assert "<form" not in auditor.get(page).text.split("<main")[1]
    assert auditor.post(page, data=new).status_code == 403
