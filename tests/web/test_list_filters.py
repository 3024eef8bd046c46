"""Lists of comparisons and votes: filters, flags and ticked rows, over HTTP."""

import uuid

import httpx

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def cast(client: httpx.Client, comparison_id: str, choice: str = "a", **more: object) -> str:
    sent = {"comparison_id": comparison_id, "choice": choice, **more}
    answer = client.post("/votes", json=sent, headers={"Idempotency-Key": str(uuid.uuid4())})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["vote_id"])


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


def test_a_blind_reader_finds_by_kind_only_what_they_judged(web: Web):
    own, other = web.publish(1, prefix="o"), web.publish(1, prefix="i", source="arena")
    curator, engineer = web.client("curator"), web.client("engineer")
    admin = web.client("admin")
    cast(admin, other[0])
    skipped = cast(curator, other[0], "skip")
    by_source = {"source": "arena"}
    assert list_keys(engineer, "/comparisons", "comparison_id", **by_source) == other
    assert len(list_keys(engineer, "/votes", "vote_id", **by_source)) == 2
    voter = {"annotator_id": admin.user.user_id}
    assert list_keys(engineer, "/comparisons", "comparison_id", **voter) == other
    for only in (by_source, voter):
        assert list_keys(curator, "/comparisons", "comparison_id", **only) == []
        # their own skip would tell of which data set the comparison is
        assert list_keys(curator, "/votes", "vote_id", **only) == []
    assert list_keys(curator, "/votes", "vote_id") == [skipped]
    assert curator.get("/comparisons", params={"status": "done"}).status_code == 403
    cast(curator, own[0])
    assert list_keys(curator, "/comparisons", "comparison_id", source="this project") == own
