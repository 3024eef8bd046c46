"""A request meant for one login does nothing for another."""

from tests.web.conftest import Web


def test_request_of_another_login_is_refused(web: Web):
    web.publish(2)
    ann, bo = web.client("annotator"), web.client("annotator")
    for_ann = {"X-Annotator": ann.user.user_id}  # type: ignore[attr-defined]
    refused = bo.post("/cards:lease", json={"n": 1}, headers=for_ann)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:rlhf:problem:other_login")
    assert web.store.cards.remaining_work().n_leased == 0
    card = ann.post("/cards:lease", json={"n": 1}, headers=for_ann).json()["cards"][0]
    vote = {"card_id": card["card_id"], "choice": "a"}
    headers = for_ann | {"Idempotency-Key": "k"}
    assert bo.post("/votes", json=vote, headers=headers).status_code == 403
    assert bo.post("/votes:batch", json={"votes": []}, headers=for_ann).status_code == 403
    assert ann.post("/votes", json=vote, headers=headers).status_code == 201
