"""Lists of comparisons and votes: filters, flags and ticked rows, over HTTP."""

import re

import httpx
from fastapi.routing import APIRoute

from rlhf_pipeline.core.records import Role
from rlhf_pipeline.web.app import create_app
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def list_keys(client: httpx.Client, path: str, key: str, **params: object) -> list[str]:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return [item[key] for item in answer.json()["items"]]


def test_flag_withholds_comparisons_until_removed(web: Web):
    ids = web.publish(3)
    engineer, ann = web.client("engineer"), web.client("annotator")
    for n_changed in (1, 0):
        flagged = engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": "pii"})
        assert flagged.json() == {"n_comparisons": n_changed, "n_withdrawn": n_changed}
    assert list_keys(engineer, "/comparisons", "comparison_id", flag="pii") == ids[:1]
    cards = ann.post("/cards:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 2
    engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": None})
    engineer.post("/comparisons:offer", json={"ids": ids})
    cards = ann.post("/cards:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 3
    refused = engineer.post("/comparisons:flag", json={"ids": ["none"], "flag": "pii"})
    assert refused.status_code == 404
    assert ann.post("/comparisons:flag", json={"ids": ids, "flag": "pii"}).status_code == 403


def test_routes_refuse_unknown_parameters_with_the_known_ones(paged: Web):
    admin = paged.browser(paged.add(*Role))
    app = create_app(paged.settings, paged.store)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 150
    for route in routes:
        url = paged.url + re.sub(r"{[^}]*}", "1", route.path)
        for method in route.methods:
            refused = admin.request(method, url, params={"anotator_id": "x"})
            assert refused.status_code == 422, (method, url, refused.text)
            assert "Unknown parameter anotator_id" in refused.text
    for page in ("alignment", "drift", "preferences", "progress", "evolution"):
        admin.get(f"{paged.url}/{page}?zoom=2026-01-01..2026-01-05").raise_for_status()
    wrong = admin.get("/votes", params={"category": "", "state": "done"}).json()["errors"][0]
    assert wrong["path"] == "query.state"
    assert "annotator_id, comparison_id, day, up_to, status" in wrong["message"]


def test_days_in_the_wrong_order_are_refused(web: Web):
    query = {"since": "2026-01-03", "until": "2026-01-02"}
    refused = web.client("admin").get("/votes", params=query)
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "query.until")
    assert "From 2026-01-03 is after To 2026-01-02" in refused.json()["detail"]


def test_malformed_day_is_named_and_blanks_are_ignored(web: Web):
    admin = web.client("admin")
    refused = admin.get("/votes", params={"day": "2026-13-01"})
    assert [error["path"] for error in refused.json()["errors"]] == ["query.day"]
    ids = web.publish(2)
    for query in ({"category": " factual "}, {"category": " ", "status": " not_offered\t"}):
        admin.get("/comparisons", params=query).raise_for_status()
    assert len(list_keys(admin, "/comparisons", "comparison_id", q="  ")) == len(ids)
    assert list_keys(admin, "/votes", "vote_id", day=" 2026-01-02 ") == []
