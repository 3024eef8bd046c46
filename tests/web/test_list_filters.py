"""Lists of comparisons and votes: filters, flags and ticked rows, over HTTP."""

import httpx

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def list_keys(client: httpx.Client, path: str, key: str, **params: object) -> list[str]:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return [item[key] for item in answer.json()["items"]]


def test_a_flag_takes_comparisons_out_of_use_until_it_is_removed(web: Web):
    ids = web.publish(3)
    engineer, ann = web.client("engineer"), web.client("annotator")
    for n_changed in (1, 0):
        flagged = engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": "pii"})
        assert flagged.json() == {"n_comparisons": n_changed, "n_withdrawn": n_changed}
    assert list_keys(engineer, "/comparisons", "comparison_id", flag="pii") == ids[:1]
    cards = ann.post("/assignments:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 2
    engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": None})
    engineer.post("/comparisons:offer", json={"ids": ids})
    cards = ann.post("/assignments:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 3
    refused = engineer.post("/comparisons:flag", json={"ids": ["none"], "flag": "pii"})
    assert refused.status_code == 404
    assert ann.post("/comparisons:flag", json={"ids": ids, "flag": "pii"}).status_code == 403


LISTS = (
    *("votes", "comparisons", "consensus", "quality", "feedback", "drift-events", "alerts"),
    *("alerts/messages", "runs", "audit", "metrics/points", "users", "decisions"),
    *("calibrations", "me/votes", "me/tokens"),
)


def test_an_unknown_filter_is_refused_with_the_known_ones(web: Web):
    admin = web.client("admin")
    for noun in LISTS:
        refused = admin.get(f"/{noun}", params={"anotator_id": "x", "limit": 1})
        assert refused.status_code == 422, noun
        (wrong,) = refused.json()["errors"]
        assert wrong["path"] == "query.anotator_id"
        assert "cursor, limit" in wrong["message"]
    wrong = admin.get("/votes", params={"category": "", "state": "done"}).json()["errors"][0]
    assert "annotator_id, comparison_id, day, up_to, status" in wrong["message"]


def test_days_in_the_wrong_order_are_refused(web: Web):
    asked = {"since": "2026-01-03", "until": "2026-01-02"}
    refused = web.client("admin").get("/votes", params=asked)
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "query.until")
    assert "From 2026-01-03 is after To 2026-01-02" in refused.json()["detail"]


def test_a_malformed_day_is_reported_by_its_name_and_blanks_are_left_out(web: Web):
    admin = web.client("admin")
    refused = admin.get("/votes", params={"day": "2026-13-01"})
    assert [one["path"] for one in refused.json()["errors"]] == ["query.day"]
    ids = web.publish(2)
    for asked in ({"category": " factual "}, {"category": " ", "status": " not_offered\t"}):
        admin.get("/comparisons", params=asked).raise_for_status()
    assert len(list_keys(admin, "/comparisons", "comparison_id", q="  ")) == len(ids)
    assert list_keys(admin, "/votes", "vote_id", day=" 2026-01-02 ") == []
