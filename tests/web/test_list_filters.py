"""Lists of comparisons and votes: filters, flags and ticked rows, over HTTP."""

import re

import httpx
from fastapi.routing import APIRoute

from rlhf_pipeline.core.records import Role
from rlhf_pipeline.web.app import create_app
from tests.web.conftest import Web


def list_keys(client: httpx.Client, path: str, key: str, **params: object) -> list[str]:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return [item[key] for item in answer.json()["items"]]


def test_routes_refuse_unknown_parameters_with_the_known_ones(paged: Web):
    admin = paged.browser(paged.add(*Role))
    app = create_app(paged.settings, paged.store)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 150
    for route in routes:
        url = paged.url + re.sub(r"{[^}]*}", "1", route.path)
        for method in route.methods:
            refused = admin.request(method, url, params={"anotator_id": "x"})
            is_openai = route.path.startswith("/v1/")  # whose clients know 400
            expected = 400 if is_openai else 422
            assert refused.status_code == expected, (method, url, refused.text)
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
