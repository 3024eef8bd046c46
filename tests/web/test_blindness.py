"""Votes say whether their annotator could read other people's: roles decide, and nothing else."""

import uuid

import pytest

from tests.web.conftest import Web

REFUSED = ("votes", "consensus", "comparisons", "quality", "progress", "home", "calibrations")


@pytest.mark.parametrize(
    ("roles", "is_blind"),
    [
        (("annotator",), True),
        (("annotator", "approver"), False),
        (("curator",), False),
        (("admin",), False),
    ],
)
def test_votes_are_blind_if_annotator_is_the_only_role(
    web: Web, roles: tuple[str, ...], is_blind: bool
):
    web.publish(2)
    voter = web.client(user=web.add(*roles))
    narrow = web.client(user=voter.user, scopes=["votes.cast"])
    assert [voter.get(f"/{page}").status_code == 403 for page in ("home", "metrics")] == [
        is_blind
    ] * 2
    for client in (voter, narrow):
        (card,) = client.post("/cards:lease", json={"n": 1}).json()["cards"]
        body = {"card_id": card["card_id"], "choice": "a"}
        key = {"Idempotency-Key": str(uuid.uuid4())}
        receipt = client.post("/votes", json=body, headers=key)
        assert receipt.status_code == 201
        again = client.post("/votes", json=body, headers=key)
        assert again.json() == receipt.json()
    assert web.store.votes.log()["is_blind"].tolist() == [is_blind] * 2


def test_annotators_read_no_list_and_no_seed(web: Web):
    ann, curator = web.client("annotator"), web.client("curator")
    for noun in REFUSED:
        refused = ann.get(f"/{noun}")
        assert refused.status_code == 403, noun
        assert "requires the permission" in refused.json()["detail"]
    seeds = [client.get("/rules").json()["rules"]["seed"] for client in (ann, curator)]
    assert seeds == [None, web.store.rules.latest()[1].seed]


def test_votes_stay_blind_after_the_annotator_gains_a_role(web: Web):
    web.publish(1)
    ann = web.client("annotator")
    (card,) = ann.post("/cards:lease", json={"n": 1}).json()["cards"]
    body = {"card_id": card["card_id"], "choice": "a"}
    first = ann.post("/votes", json=body, headers={"Idempotency-Key": "k"}).json()
    web.change(web.client("admin"), ann.user.user_id, roles=["annotator", "engineer"])
    again = ann.post("/votes", json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["vote_id"]) == (201, first["vote_id"])


def test_home_offers_a_blind_login_if_no_voter_is_blind(paged: Web):
    admin = paged.add("admin")
    client, browser = paged.client(user=admin), paged.browser(admin)
    ids = paged.publish(1)

    def is_offered() -> bool:
        return '<a href="/users">add a login</a>' in browser.get(f"{paged.url}/").text

    assert not is_offered()
    vote = {"comparison_id": ids[0], "choice": "a"}
    client.post("/votes", json=vote, headers={"Idempotency-Key": "k"})
    assert is_offered()
    paged.add("annotator")
    assert not is_offered()
