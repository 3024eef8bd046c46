"""The short way of votes answers as FastAPI's own does, and whatever is not as it should be goes
FastAPI's way.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlhf_pipeline.web.votes import routes as votes
from tests.web.conftest import Web

# not word for word what the short way takes
USUAL = {"content-type": "application/json; charset=utf-8"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each request that went the short way to its end."""
    taken: list[str] = []

    submit = ThreadPoolExecutor.submit

    def noted(self: ThreadPoolExecutor, what: Any, *args: Any, **more: Any) -> Any:
        taken.extend(["cast"] if what is votes.cast else [])
        return submit(self, what, *args, **more)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted)
    return taken


def post(client: Any, body: Any, key: str, **headers: str) -> Any:
    content = body if isinstance(body, str) else json.dumps(body)
    return client.post(
        "/votes",
        content=content,
        headers={"content-type": "application/json", "Idempotency-Key": key, **headers},
    )


def test_both_ways_answer_a_vote_alike(counted: list[str], web: Web):
    web.publish(2)
    client = web.client("annotator")
    first, second = client.post("/assignments:lease", json={"n": 2}).json()["cards"]
    short = post(
        client, {"assignment_id": first["assignment_id"], "choice": "a", "strength": 2}, "k1"
    )
    assert counted == ["cast"]
    usual = post(
        client,
        {"assignment_id": second["assignment_id"], "choice": "a", "strength": 2},
        "k2",
        **USUAL,
    )
    assert counted == ["cast"]
    assert (short.status_code, usual.status_code) == (201, 201)
    assert short.headers.keys() == usual.headers.keys()
    assert list(short.json()) == list(usual.json())


@pytest.mark.parametrize(
    ("body", "key", "headers", "status"),
    [
        ({"choice": "nobody"}, "k", {}, 422),
        ("{not json", "k", {}, 422),
        ('"text"', "k", {}, 422),
        ({"choice": "a"}, "k", {}, 422),  # on nothing
        ({"choice": "a", "assignment_id": "of-nobody"}, "k", {}, 404),
        ({"choice": "a"}, "k" * 129, {}, 422),
        ({"choice": "a"}, "", {}, 422),
        ({"choice": "a"}, "k", {"content-type": "text/plain"}, 422),
        ({"choice": "a"}, "k", {"authorization": "Bearer rlhf_wrong"}, 401),
    ],
)
def test_both_ways_refuse_alike(
    web: Web, body: Any, key: str, headers: dict[str, str], status: int
):
    client = web.client("annotator")
    short = post(client, body, key, **headers)
    usual = post(client, body, key, **({**USUAL, **headers}))
    assert short.status_code == usual.status_code == status
    assert short.json() == usual.json()


def test_both_ways_need_the_permission(web: Web):
    client = web.client("auditor")
    assert [post(client, {"choice": "a"}, "k", **how).status_code for how in ({}, USUAL)] == [
        403,
        403,
    ]


@pytest.mark.parametrize("how", [{}, USUAL], ids=["short way", "usual way"])
def test_a_vote_meant_for_another_login_is_not_cast(
    counted: list[str], web: Web, how: dict[str, str]
):
    web.publish(1)
    ann, bo = web.client("annotator"), web.client("annotator")
    card = ann.post("/assignments:lease", json={"n": 1}).json()["cards"][0]
    body = {"assignment_id": card["assignment_id"], "choice": "a", "strength": 2}
    for_ann = {"X-Annotator": ann.user.user_id, **how}  # type: ignore[attr-defined]
    refused = post(bo, body, "k", **for_ann)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:rlhf:problem:other_login")
    assert counted == []
    assert post(ann, body, "k", **for_ann).status_code == 201


def test_nothing_is_done_for_another_login(web: Web):
    web.publish(2)
    ann, bo = web.client("annotator"), web.client("annotator")
    for_ann = {"X-Annotator": ann.user.user_id}  # type: ignore[attr-defined]
    for key in ({}, {"Idempotency-Key": "k"}):
        assert (
            bo.post("/assignments:lease", json={"n": 1}, headers={**for_ann, **key}).json()["type"]
            == "urn:rlhf:problem:other_login"
        )
    assert bo.post("/votes:batch", json={"votes": []}, headers=for_ann).status_code == 403
    assert web.store.assignments.remaining_work().n_leased == 0
    assert ann.post("/assignments:lease", json={"n": 1}, headers=for_ann).status_code == 200
