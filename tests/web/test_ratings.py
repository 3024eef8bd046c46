"""Rating cards over HTTP: dealt where asked for, rated once, undone, and blind."""

import pytest

from rlhf_pipeline.core.records import AnnotationRules
from tests.web.conftest import Web


@pytest.fixture
def ann(web: Web):
    web.publish(40)
    web.rule(rating_share=0.5, repeat_share=0, gold_share=0)
    return web.client("annotator")


def lease(client, n: int = 10, *, ratings: bool = True) -> list[dict]:
    cards = client.post("/cards:lease", json={"n": n, "ratings": ratings}).json()["cards"]
    return [card for card in cards if card["kind"] == "rating"]


def rate(client, card: dict, key: str, **body):
    body = {"card_id": card["card_id"]} | body
    return client.post("/ratings", json=body, headers={"Idempotency-Key": key})


def entries(web: Web) -> list:
    return web.store.feedback.page()[::-1]


def test_a_rating_is_pending_feedback_of_one_completion(web: Web, ann):
    assert AnnotationRules().rating_share == 0
    assert lease(ann, ratings=False) == []
    first, second, *_ = lease(ann, 20)
    assert first["right"] == ""
    fields = {"value": 4, "text": "clear", "flags": ["pii"], "rated_at": "2026-01-02T12:00:00Z"}
    answers = [rate(ann, first, "k1", **fields) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert rate(ann, first, "k1", value=2).status_code == 422
    assert rate(ann, first, "k2", value=2).status_code == 409
    assert rate(ann, second, "k3", value=1).status_code == 201
    entry, _ = entries(web)
    card = web.store.cards.get(first["card_id"])
    texts = web.store.comparisons.texts([card.comparison_id])[card.comparison_id]
    side = "b" if card.is_swapped else "a"
    assert (entry.kind, entry.status, entry.value, entry.text) == ("rating", "pending", 4, "clear")
    assert (entry.created_by, entry.session_id, entry.tags) == (
        ann.user.user_id,
        "annotate",
        ("pii",),
    )
    assert (entry.prompt, entry.completion, entry.completion_id) == (
        texts.prompt,
        first["left"],
        getattr(texts, f"completion_{side}_id"),
    )
    assert entry.comparison_id is None  # that of a correction is flagged with it
    assert web.store.votes.count() == 0
    acts = [link.action for link in web.store.audit.page()[0][::-1]]
    assert acts[-4:] == ["feedback.add", "card.rated"] * 2


def test_a_key_stands_for_the_rating_of_one_card(web: Web, ann):
    first, second, *_ = lease(ann, 20)
    assert rate(ann, first, "k1", value=4).status_code == 201
    assert rate(ann, second, "k1", value=4).status_code == 422
    assert web.store.cards.get(second["card_id"]).state == "leased"
    assert rate(ann, second, "k2", value=4).status_code == 201
    for other in ("k1", "nothing"):  # undoing it would leave two ratings of the card
        answer = rate(ann, second, "u1", supersedes=other)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "body.supersedes")
    assert [entry.status for entry in entries(web)] == ["pending", "pending"]
    assert web.store.cards.get(second["card_id"]).state == "rated"


def test_a_skip_says_something_only_with_a_reason_or_flag(web: Web, ann):
    first, second, *_ = lease(ann)
    for _ in range(2):
        assert rate(ann, first, "k1").status_code == 201
    assert rate(ann, first, "u1", supersedes="k1").status_code == 201
    assert web.store.cards.get(first["card_id"]).state == "leased"
    assert rate(ann, second, "k2", flags=["broken"]).status_code == 201
    (entry,) = entries(web)
    assert (entry.kind, entry.text, entry.tags) == ("detailed", "skipped", ("broken",))
    assert web.store.cards.get(second["card_id"]).state == "skipped"


def test_only_own_rating_cards_are_rated(web: Web, ann):
    card, *_ = lease(ann)
    other = web.client("annotator")
    assert rate(other, card, "k", value=3).status_code == 404
    assert rate(other, {"card_id": "none"}, "k", value=3).status_code == 404
    vote = ann.post(
        "/votes", json={"card_id": card["card_id"], "choice": "a"}, headers={"Idempotency-Key": "v"}
    )
    assert (vote.status_code, "POST ratings" in vote.json()["detail"]) == (422, True)
    cards = ann.post("/cards:lease", json={"n": 10, "ratings": True}).json()["cards"]
    comparison = next(each for each in cards if each["kind"] == "comparison")
    answer = rate(ann, comparison, "k", value=3)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "body.card_id")
    for value in (0, 6, 2.5, "x"):
        assert rate(ann, card, "k", value=value).status_code == 422
    assert entries(web) == []
