"""POSTs that are sent again under their key: done once, answered again."""

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import utc_now
from tests.web.conftest import Web
from tests.web.databases import on_sqlite
from tests.web.test_alerts import add_dead_message, look
from tests.web.test_decisions import ask_people

THUMB = {"kind": "thumbs", "value": 1, "completion": "text", "session_id": "s"}
CORRECTION = {"kind": "correction", "prompt": "2 + 2?", "completion": "5", "correction": "4"}


def column(web: Web, name: str) -> list:
    """Of all requests that are kept."""
    with web.store.database.read_transaction() as connection:
        return list(connection.exec_driver_sql(f"SELECT {name} FROM requests").scalars())


def test_fifty_at_once_are_done_once(web: Web, capsys: pytest.CaptureFixture[str]):
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
    n_replayed = sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers)
    n_rows = len(web.store.feedback.page())
    with capsys.disabled():
        print(
            "\n50 parallel posts of feedback under one key on "
            f"{web.store.database.engine.dialect.name}: {n_rows} row, {n_replayed} replayed"
        )
    assert (n_rows, n_replayed) == (1, 49)


def test_a_running_twin_is_told_to_come_back(web: Web):
    robot = web.client("engineer")
    assert (
        robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": "before"}).status_code
        == 201
    )
    (asked,) = column(web, "request_hash")
    # somebody begins and does not end
    assert web.store.requests.begin(robot.user.user_id, "k", asked) is None
    answer = robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": "k"})
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
        assert (
            robot.post("/feedback", json=THUMB, headers={"Idempotency-Key": "k"}).status_code == 201
        )
    assert len(web.store.feedback.page()) == 2


@on_sqlite
def test_a_request_that_failed_may_be_sent_again_corrected(web: Web):
    robot = web.client("engineer")
    headers = {"Idempotency-Key": "k"}
    assert robot.post("/feedback", json={**THUMB, "value": 7}, headers=headers).status_code == 422
    assert robot.post("/feedback", json=THUMB, headers=headers).status_code == 201


@on_sqlite
def test_a_secret_is_shown_once_and_never_kept(web: Web):
    user = web.add("annotator")
    ann = web.browser(user)
    headers = {"Idempotency-Key": "k"}
    first = ann.post("/me/tokens", json={"name": "script"}, headers=headers)
    again = ann.post("/me/tokens", json={"name": "script"}, headers=headers)
    assert first.json()["secret"].startswith("rlhf_")
    assert again.json() == {**first.json(), "secret": None}
    assert len(ann.get("/me/tokens").json()["items"]) == 1
    link = (
        web.browser(web.add("admin"))
        .post(f"/users/{user.user_id}:login-link", headers=headers)
        .json()["login_link"]
    )
    stored = (
        web.store.database.path.read_bytes()
        + web.store.database.path.with_name("store.db-wal").read_bytes()
    )
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


class Killed(StoreError):
    """By the power, right after a commit."""


@contextmanager
def killed_after(web: Web, n: int) -> Iterator[None]:
    """The server's process commits `n` transactions more and nothing ever after: neither answers
    nor tidying up.
    """
    database = web.store.database
    writing = web.store.database.write_transaction
    left = [n]

    @contextmanager
    def mortal(*, urgent: bool = False) -> Iterator[object]:
        if left[0] <= 0:
            raise Killed
        with writing(urgent=urgent) as connection:
            yield connection
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    database.write_transaction = mortal
    try:
        yield
    finally:
        del database.write_transaction


def links_of(web: Web, user_id: str) -> int:
    """Those that were not used yet: by one the browser logged in."""
    return sum(
        token.kind == "login" and token.revoked_at is None
        for token in web.store.tokens.of_user(user_id)
    )


def made_by_hand(web: Web, user_id: str) -> int:
    return sum(token.kind == "api" for token in web.store.tokens.of_user(user_id))


# What is sent, with which headers, and how many of it there are afterwards.
ACTS: dict[str, tuple[Callable[[str], tuple[str, object]], Callable[[Web, str], int]]] = {
    "thumbs": (lambda _: ("/feedback", THUMB), lambda web, _: len(web.store.feedback.page())),
    "correction": (lambda _: ("/feedback", CORRECTION), lambda web, _: web.store.votes.count()),
    "user": (
        lambda _: ("/users", {"email": "new@example.org", "name": "New"}),
        lambda web, _: web.store.users.count() - 1,
    ),
    "link": (lambda who: (f"/users/{who}:login-link", None), links_of),
    "token": (lambda _: ("/me/tokens", {"name": "ci"}), made_by_hand),
    "guidelines": (
        lambda _: ("/guidelines", {"text": "Be fair."}),
        lambda web, _: len(web.store.guidelines.all()),
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_process_that_is_killed_has_done_it_once_or_not_at_all(web: Web, act: str):
    user = web.add("admin")
    admin = web.browser(user) if act in ("token", "link", "user") else web.client(user=user)
    # the use of a token is a transaction too, once a minute
    assert admin.get("/me").status_code == 200
    sent, counted = ACTS[act]
    path, body = sent(user.user_id)
    headers = {"Idempotency-Key": "k", "If-Match": '"0"'}
    # killed after its first transaction, after its second, until it is not killed any more
    for n in range(1, 10):
        with killed_after(web, n):
            is_answered = admin.post(path, json=body, headers=headers).status_code == 201
        assert counted(web, user.user_id) <= 1
        web.clock.shift += timedelta(seconds=61)  # what died may be done again by now
        admin.get("/me")
        if is_answered:
            break
    assert 2 < n < 9
    first, again = (admin.post(path, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201), first.text
    assert first.text == again.text
    assert counted(web, user.user_id) == 1
    if act == "user":
        assert links_of(web, first.json()["user_id"]) == 1  # never somebody without their link
    web.store.audit.verify()


@on_sqlite
def test_an_answer_that_is_kept_names_nobody_and_is_told_whole(web: Web):
    admin = web.browser(web.add("admin"))
    headers = {"Idempotency-Key": "k"}
    body = {"email": "Vera@Example.org", "name": "Vera Lynn", "roles": ["annotator"]}
    first, again = (admin.post("/users", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert again.json() == {**first.json(), "login_link": None}
    (kept,) = column(web, "answer")
    assert json.loads(kept)["user_id"] == first.json()["user_id"]
    for word in ("vera", "lynn", "example.org"):
        assert word not in kept.lower()
    (asked,) = column(web, "request_hash")
    # Who reads the database cannot try addresses against it: the digest is keyed.
    assert asked != hashlib.sha256(b"POST /api/v1/users?\n" + first.request.content).hexdigest()
    assert admin.post("/users", json={**body, "name": "Else"}, headers=headers).status_code == 422


@on_sqlite
def test_nothing_is_kept_of_a_request_with_passwords(web: Web):
    browser = web.browser(web.add("annotator"))
    answer = browser.post(
        "/me/password",
        json={"new_password": "correct horse battery"},
        headers={"Idempotency-Key": "k"},
    )
    assert answer.status_code == 204
    assert column(web, "request_hash") == []


WITHOUT_KEY = {"/auth/login", "/auth/redeem", "/auth/logout", "/me/password", "/completions:stream"}


@on_sqlite
def test_every_post_takes_a_key_but_those_that_the_description_excepts(web: Web):
    document = web.anonymous().get("/openapi.json").json()
    posts = {
        path.removeprefix("/api/v1"): methods["post"]
        for path, methods in document["paths"].items()
        if "post" in methods
    }
    said = {
        path
        for path, one in posts.items()
        if any(p["name"].lower() == "idempotency-key" for p in one.get("parameters", ()))
    }
    assert said == posts.keys() - WITHOUT_KEY
    assert len(said) >= 14
    assert "`completions:stream` ignore the key" in document["info"]["description"]
    for path in WITHOUT_KEY:
        name = path.strip("/").removesuffix("/login").removesuffix("/redeem")
        assert f"`{name.removesuffix('/logout')}`" in document["info"]["description"], path
    # What is described is done: a key that cannot be kept is refused before anything else is looked
    # at, or passed over.
    for path in posts:
        browser = web.browser(web.add("admin"))
        answer = browser.post(
            re.sub(r"\{\w+\}", "none", path),
            json={"nothing": 1},
            headers={"Idempotency-Key": "x" * 129},
        )
        wrong = [one["path"] for one in answer.json()["errors"]] if answer.content else []
        assert ("header.idempotency-key" in [one.lower() for one in wrong]) == (path in said), (
            path,
            answer.text,
        )


@on_sqlite
def test_every_post_that_was_done_is_answered_again_and_not_done_again(web: Web):
    """Whatever of them can be done with a body made up here."""
    ids = web.publish(3)
    admin, user = web.browser(web.add("admin")), web.add("annotator")
    card = admin.post("/assignments:lease", json={"n": 2}).json()["cards"]
    dead = add_dead_message(web.store).message_id
    look(web, 80)  # opens alert 1
    web.publish(4, prefix="g", offer=False, gold="a")
    known = admin.get("/practice").json()["cards"][0]["comparison_id"]
    silence = {"reason": "holidays", "ends_at": (utc_now() + timedelta(hours=1)).isoformat()}
    ask_people(web.store)  # decision 1; its answer, 2, begins a quarantine
    quarantine = {"answer": "quarantine", "reason": "careless"}
    figure = {"day": "2026-01-05", "metric": "errors", "model": "m", "n": 10, "total": 1}
    decided = {"comparison_id": ids[2], "choice": "a", "reason": "A names its source."}
    bodies: dict[str, tuple[str, object]] = {
        "/metrics/production": ("/metrics/production", {"figures": [figure]}),
        "/assignments:lease": ("/assignments:lease", {"n": 1}),
        "/assignments:extend": ("/assignments:extend", None),
        "/assignments/{assignment_id}:release": (
            f"/assignments/{card[0]['assignment_id']}:release",
            None,
        ),
        "/practice/{comparison_id}:reveal": (f"/practice/{known}:reveal", None),
        "/votes": ("/votes", {"assignment_id": card[1]["assignment_id"], "choice": "a"}),
        "/votes:batch": (
            "/votes:batch",
            {"votes": [{"comparison_id": ids[2], "choice": "tie", "idempotency_key": "in batch"}]},
        ),
        "/comparisons:offer": ("/comparisons:offer", {"ids": ids}),
        "/comparisons:withdraw": ("/comparisons:withdraw", {"ids": ids}),
        "/comparisons:flag": ("/comparisons:flag", {"ids": ids[:1], "flag": None}),
        "/consensus:decide": ("/consensus:decide", decided),
        "/consensus:undo": ("/consensus:undo", {"comparison_id": ids[2]}),
        "/feedback": ("/feedback", THUMB),
        "/guidelines": ("/guidelines", {"text": "Be fair."}),
        "/users": ("/users", {"email": "new@example.org"}),
        "/users/{user_id}:login-link": (f"/users/{user.user_id}:login-link", None),
        "/me/tokens": ("/me/tokens", {"name": "ci"}),
        "/audit:verify": ("/audit:verify", None),
        "/alerts/{alert_id}:acknowledge": ("/alerts/1:acknowledge", None),
        "/alerts/{alert_id}:resolve": ("/alerts/1:resolve", None),
        "/alerts/silences": ("/alerts/silences", silence),
        "/alerts/messages/{message_id}:replay": (f"/alerts/messages/{dead}:replay", None),
        "/alerts/targets/{target}:test": ("/alerts/targets/log:test", None),
        "/decisions/{decision_id}:answer": ("/decisions/1:answer", quarantine),
        "/decisions/{decision_id}:lift": ("/decisions/2:lift", {"reason": "a mistake"}),
    }
    document = web.anonymous().get("/openapi.json").json()
    posts = {
        path.removeprefix("/api/v1")
        for path, methods in document["paths"].items()
        if "post" in methods
    }
    # needs a model; test_predictions has it
    assert posts - WITHOUT_KEY - bodies.keys() == {"/predictions"}
    others: dict[str, object] = {  # as good a request, of which the key says nothing
        "/assignments:lease": {"n": 2},
        "/votes": {"assignment_id": card[1]["assignment_id"], "choice": "b"},
        "/votes:batch": {
            "votes": [{"comparison_id": ids[2], "choice": "a", "idempotency_key": "in batch"}]
        },
        "/comparisons:offer": {"ids": ids, "overlap": 3},
        "/comparisons:withdraw": {"ids": ids[:1]},
        "/comparisons:flag": {"ids": ids[1:2], "flag": None},
        "/consensus:decide": {**decided, "reason": "Read twice."},
        "/consensus:undo": {"comparison_id": ids[2], "reason": "by mistake"},
        "/feedback": {**THUMB, "value": 0},
        "/guidelines": {"text": "Be kind."},
        "/users": {"email": "newer@example.org"},
        "/alerts/silences": {**silence, "reason": "exams"},
        "/decisions/{decision_id}:answer": {**quarantine, "answer": "nothing"},
        "/decisions/{decision_id}:lift": {"reason": "another mistake"},
        "/me/tokens": {"name": "cd"},
        "/metrics/production": {"figures": [{**figure, "total": 2}]},
    }
    assert others.keys() == {path for path, (_, body) in bodies.items() if body is not None}
    for path, (address, body) in bodies.items():
        headers = {"Idempotency-Key": path, "If-Match": '"0"'}
        first = admin.post(address, json=body, headers=headers)
        assert first.is_success, (path, first.text)
        assert "idempotency-replayed" not in first.headers, path
        n_links = web.store.audit.count()
        again = admin.post(address, json=body, headers=headers)
        hidden = {"secret", "login_link"}
        told = [one.json() if one.content else None for one in (first, again)]
        assert (
            len(
                {
                    json.dumps({k: v for k, v in (one or {}).items() if k not in hidden})
                    for one in told
                }
            )
            == 1
        ), path
        # a vote is kept with its own key, for ever, and read again
        replayed = None if path == "/votes" else "true"
        assert (again.status_code, again.headers.get("idempotency-replayed")) == (
            first.status_code,
            replayed,
        ), (path, again.text)
        if path in others:
            other = admin.post(address, json=others[path], headers=headers)
            assert (other.status_code, other.json()["type"]) == (
                422,
                "urn:rlhf:problem:idempotency_conflict",
            ), (path, other.text)
        assert web.store.audit.count() == n_links, path
