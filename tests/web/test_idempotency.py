"""POSTs that are sent again under their key: done once, answered again."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

THUMB = {"kind": "thumbs", "value": 1, "completion": "text", "session_id": "s"}


def test_fifty_at_once_are_done_once(web: Web):
    robot = web.client("engineer")

    def send(_: int):
        while True:
            answer = robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": "k"})
            if answer.status_code != 409:
                return answer
            assert answer.headers["retry-after"] == "1"  # a twin is at work
            threading.Event().wait(0.05)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers) == 49
    assert len(web.store.feedback.page()) == 1


def test_a_running_twin_is_told_to_come_back(web: Web):
    robot = web.client("engineer")
    sent = robot.build_request("POST", "/feedback", json=THUMB, headers={"Idempotency-Key": "k"})
    import hashlib

    asked = hashlib.sha256(b"POST /api/v1/feedback?\n" + sent.content).hexdigest()
    assert web.store.requests.begin(robot.user.user_id, "k", asked) is None  # somebody begins and does not end
    answer = robot.send(sent)
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")
    assert answer.json()["type"].endswith("already_running")


def test_another_body_under_the_key_is_refused(web: Web):
    robot = web.client("engineer")
    headers = {"Idempotency-Key": "k"}
    assert robot.post("/feedback", json=THUMB, headers=headers).status_code == 201
    assert robot.post("/feedback", json={**THUMB, "value": 0}, headers=headers).status_code == 422
    assert robot.post("/comparisons:offer", json={"ids": []}, headers=headers).status_code == 422
    assert len(web.store.feedback.page()) == 1


@on_sqlite
def test_a_key_is_ones_own(web: Web):
    for robot in (web.client("engineer"), web.client("engineer")):
        assert robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": "k"}).status_code == 201
    assert len(web.store.feedback.page()) == 2


@on_sqlite
def test_a_request_that_failed_may_be_sent_again_corrected(web: Web):
    robot = web.client("engineer")
    headers = {"Idempotency-Key": "k"}
    assert robot.post("/feedback", json={**THUMB, "value": 7}, headers=headers).status_code == 422
    assert robot.post("/feedback", json=THUMB, headers=headers).status_code == 201


@on_sqlite
def test_a_secret_is_shown_once_and_never_kept(web: Web):
    ann = web.client("annotator")
    headers = {"Idempotency-Key": "k"}
    first = ann.post("/me/tokens", json={"name": "script"}, headers=headers)
    again = ann.post("/me/tokens", json={"name": "script"}, headers=headers)
    assert first.json()["secret"].startswith("rlhf_")
    assert again.json() == {**first.json(), "secret": None}
    assert len(ann.get("/me/tokens").json()["items"]) == 2  # the client's own, and one
    link = web.client("admin").post(f"/users/{ann.user.user_id}:login-link", headers=headers).json()["login_link"]
    stored = web.store.database.path.read_bytes() + web.store.database.path.with_name("store.db-wal").read_bytes()
    assert first.json()["secret"].encode() not in stored
    assert link.partition("token=")[2].encode() not in stored


@on_sqlite
def test_a_key_that_cannot_be_kept_is_refused(web: Web):
    robot = web.client("engineer")
    for key in ("", "x" * 129, "tab\there"):
        answer = robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": key})
        assert answer.status_code == 422, key
    assert web.store.feedback.page() == []


@on_sqlite
def test_leasing_under_a_key_gives_the_same_cards(web: Web):
    web.publish(20)
    ann = web.client("annotator")
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first, again = (ann.post("/assignments:lease", json={"n": 2}, headers=key) for _ in range(2))
    assert first.text == again.text
    assert again.headers["content-type"] == "application/json"
