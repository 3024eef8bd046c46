"""Feedback that is sent again under its key is stored once; a user is never without their link."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rlhf_pipeline.core.errors import StoreError
from tests.web.conftest import Web

THUMB = {"kind": "thumbs", "value": 1, "completion": "text", "session_id": "s"}
CORRECTION = {"kind": "correction", "prompt": "2 + 2?", "completion": "5", "correction": "4"}


def test_fifty_concurrent_requests_are_stored_once(web: Web):
    robot = web.client("engineer")

    def send(_: int):
        return robot.post("/feedback", json=CORRECTION, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert (len(web.store.feedback.page()), web.store.votes.count()) == (1, 1)


def test_key_is_per_user_and_bound_to_its_body(web: Web):
    robot = web.client("engineer")
    headers = {"Idempotency-Key": "k"}
    assert robot.post("/feedback", json={**THUMB, "value": 7}, headers=headers).status_code == 422
    assert robot.post("/feedback", json=THUMB, headers=headers).status_code == 201
    other = robot.post("/feedback", json={**THUMB, "value": 0}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (
        422,
        "urn:rlhf:problem:idempotency_conflict",
    )
    assert web.client("engineer").post("/feedback", json=THUMB, headers=headers).status_code == 201
    assert len(web.store.feedback.page()) == 2


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\there"])
def test_invalid_idempotency_key_is_refused(web: Web, key: str):
    answer = web.client("engineer").post("/feedback", json=THUMB, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert web.store.feedback.page() == []


class Killed(StoreError):
    """By the power, right after a commit."""


@contextmanager
def killed_after(web: Web, n: int) -> Iterator[None]:
    """The server's process commits `n` transactions more and nothing ever after."""
    database = web.store.database
    writing = web.store.database.write_transaction
    left = [n]

    @contextmanager
    def mortal() -> Iterator[object]:
        if left[0] <= 0:
            raise Killed
        with writing() as connection:
            yield connection
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    database.write_transaction = mortal
    try:
        yield
    finally:
        del database.write_transaction


# what is sent, and how many of it there are afterwards
ACTS: dict[str, tuple[str, object, Callable[[Web], int]]] = {
    "correction": ("/feedback", CORRECTION, lambda web: web.store.votes.count()),
    "user": (
        "/users",
        {"email": "new@example.org", "name": "New"},
        lambda web: web.store.users.count() - 1,
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_killed_request_is_stored_whole_or_not_at_all(web: Web, act: str):
    admin = web.browser(web.add("admin"))
    assert admin.get("/me").status_code == 200  # the use of a token is a transaction too
    path, body, counted = ACTS[act]
    with killed_after(web, 0):
        admin.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert counted(web) == 0
    with killed_after(web, 1):
        admin.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert counted(web) == 1
    if act == "user":
        (user,) = [each for each in web.store.users.all() if each.email == "new@example.org"]
        assert [token.kind for token in web.store.tokens.of_user(user.user_id)] == ["login"]
    else:
        assert admin.post(path, json=body, headers={"Idempotency-Key": "k"}).status_code == 201
        assert (counted(web), len(web.store.feedback.page())) == (1, 1)
    web.store.audit.verify()
