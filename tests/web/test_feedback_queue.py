"""The queue of feedback over REST and its page: who reviews, what a bulk changes, and its undo."""

import csv
import io
import re

import pytest

from rlhf_pipeline.core.records import NewFeedback
from tests.web.conftest import Web


@pytest.fixture
def send(paged: Web):
    def send(n: int, **values: object) -> None:
        for i in range(n):
            fields = {"kind": "thumbs", "value": 1, "prompt": f"p{i}", "completion": "x"} | values
            paged.store.feedback.add(NewFeedback(**fields), created_by="app")

    return send


@pytest.fixture
def curator(paged: Web):
    return paged.client("curator")


def statuses(client) -> list[str]:
    return [each["status"] for each in client.get("/feedback").json()["items"]]


def test_only_curators_and_admins_review(paged, send, curator):
    send(1)
    body = {"feedback_ids": [1], "status": "approved"}
    for role in ("engineer", "annotator", "auditor", "approver"):
        client = paged.client(role)
        assert client.post("/feedback:review", json=body).status_code == 403, role
        assert client.post("/feedback:undo", json={"review_id": 1}).status_code == 403, role
    assert curator.post("/feedback:review", json=body).status_code == 200
    assert statuses(paged.client("engineer")) == ["approved"]
    assert paged.client("admin").post("/feedback:undo", json={"review_id": 1}).status_code == 200


def test_an_unknown_entry_refuses_all_and_is_named(send, curator):
    send(2)
    body = {"feedback_ids": [1, 9, 2], "status": "approved"}
    refused = curator.post("/feedback:review", json=body)
    assert refused.status_code == 422
    errors = [(error["path"], error["message"]) for error in refused.json()["errors"]]
    assert errors == [("body.feedback_ids.1", "feedback 9: does not exist")]
    assert statuses(curator) == ["pending"] * 2
    for body in ({}, {"feedback_ids": [1]}, {"filter": {}, "status": "approved"}):
        assert curator.post("/feedback:review", json=body).status_code == 422


def test_the_page_is_a_queue_of_pending_feedback(paged, send, curator):
    send(3, session_id="s")
    send(1, kind="correction", value=None, correction="better", session_id="s")
    browser = paged.browser(curator.user)

    def submit(path, **fields):
        answer = browser.post(f"{paged.url}{path}", data=fields)
        assert answer.status_code == 303
        return browser.get(f"{paged.url}{answer.headers['location'].partition('#')[0]}").text

    page = submit("/feedback/review?session_id=s&status=pending", id=["1", "2"], status="approved")
    assert "Approved 2 items." in page
    assert "2 of 4 pending" in page
    undo = re.search(r'action="(/feedback/undo/[^"]*)"', page).group(1).replace("&amp;", "&")
    assert "session_id=s" in undo
    assert "Restored 2 items." in submit(undo)
    fields = {"all": "4", "status": "rejected", "tags": "Spam, bot", "notes": "odd"}
    page = submit("/feedback/review?session_id=s&status=pending", **fields)
    assert "Rejected 4 items." in page
    assert "No matching feedback" in page
    assert "Nothing is pending" in browser.get(f"{paged.url}/feedback").text
    panel = {
        "id": "4",
        "is_whole": "yes",
        "status": "approved",
        "tags": "bot",
        "notes": "",
        "next": "3",
    }
    assert "Approved 1 item." in submit("/feedback/review?status=all", **panel)
    assert "Tick at least one" in submit("/feedback/review", status="approved")
    wrong = browser.post(f"{paged.url}/feedback/review", data={"id": "1"})
    assert (wrong.status_code, "say what to change" in wrong.text) == (422, True)
    conflict = {"all": "9", "status": "approved"}
    answer = browser.post(f"{paged.url}/feedback/review?tag=spam", data=conflict)
    assert (answer.status_code, "3 entries now, not 9" in answer.text) == (409, True)
    lines = csv.DictReader(
        io.StringIO(browser.get(f"{paged.url}/feedback?status=all&tag=bot&format=csv").text)
    )
    listed = [(row["feedback_id"], row["status"], row["notes"]) for row in lines]
    assert listed == [("4", "approved", ""), *[(n, "rejected", "odd") for n in "321"]]
