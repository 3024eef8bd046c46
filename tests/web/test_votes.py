"""Casting votes over HTTP: sides, keys, leases, undo, batches; what is answered and what is
kept.
"""

import uuid
from datetime import timedelta

import httpx
import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice
from tests.web.conftest import Web


def lease(client: httpx.Client, n: int = 5) -> list[dict]:
    answer = client.post("/cards:lease", json={"n": n})
    assert answer.status_code == 200, answer.text
    return answer.json()["cards"]


def vote(
    client: httpx.Client,
    card_id: str | None,
    choice: str = "a",
    *,
    key: str | None = None,
    **more,
) -> httpx.Response:
    body = {"card_id": card_id, "choice": choice, **more}
    return client.post("/votes", json=body, headers={"Idempotency-Key": key or str(uuid.uuid4())})


def test_vote_is_stored_with_sides_of_the_comparison(web: Web):
    web.publish(12)
    ann = web.client("annotator")
    swaps = set()
    for card in lease(ann, 12):
        answer = vote(
            ann,
            card["card_id"],
            "a",
            strength=3,
            reason="warmer — ü",
            stated_confidence=0.8,
            duration_s=4.5,
            dimensions={"correct": "b", "style": "tie"},
            highlights=[{"side": "a", "start": 0, "end": 4, "sign": "+"}],
            flags=["pii"],
        )
        assert answer.status_code == 201, answer.text
        stored = web.store.votes.get(answer.json()["vote_id"])
        shown_left = card["left"]
        comparison = web.store.comparisons.texts([stored.comparison_id])[stored.comparison_id]
        left = "b" if stored.is_swapped else "a"
        assert shown_left == getattr(comparison, f"completion_{left}")
        assert (stored.choice, stored.details.highlights[0].side) == (left, left)
        assert stored.details.dimensions == {
            "correct": "a" if stored.is_swapped else "b",
            "style": "tie",
        }
        assert (stored.strength, stored.reason, stored.stated_confidence, stored.duration_s) == (
            3,
            "warmer — ü",
            0.8,
            4.5,
        )
        assert (stored.origin, stored.annotator_kind, stored.annotator_id) == (
            "api",
            AnnotatorKind.HUMAN,
            ann.user.user_id,
        )
        assert answer.json()["choice"] == "a"
        swaps.add(stored.is_swapped)
    assert swaps == {True, False}
    assert web.store.audit.verify() > 12


def test_vote_names_existing_guidelines_or_the_newest(web: Web):
    web.publish(3)
    ann = web.client("annotator")
    cards = [card["card_id"] for card in lease(ann, 3)]
    refused = vote(ann, cards[0], guideline_version=1)
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (
        422,
        "body.guideline_version",
    )
    assert "no guidelines yet" in refused.json()["detail"]
    assert vote(ann, cards[0], guideline_version=0).status_code == 422
    for n in range(2):
        web.store.guidelines.add(f"text {n}", after=n, actor="test")
    # at once: whoever published them told another process
    newest = vote(ann, cards[0], guideline_version=2)
    assert newest.status_code == 201, newest.text
    refused = vote(ann, cards[1], guideline_version=3)
    assert (refused.status_code, "newest version is 2" in refused.json()["detail"]) == (
        422,
        True,
    )
    answers = [newest, vote(ann, cards[1], guideline_version=1), vote(ann, cards[2])]
    assert [
        web.store.votes.get(answer.json()["vote_id"]).guideline_version for answer in answers
    ] == [
        2,
        1,
        2,
    ]


def test_replayed_request_has_the_same_answer_later(web: Web):
    web.publish(1)
    ann = web.client("annotator")
    (card,) = lease(ann)
    first = vote(ann, card["card_id"], key="k")
    web.store.guidelines.add("Be fair.", after=0, actor="test")
    web.rule(requires_reason=True)
    web.clock.shift = timedelta(hours=1)
    again = vote(ann, card["card_id"], key="k")
    assert (again.status_code, again.json()["vote_id"], again.json()["voted_at"]) == (
        201, first.json()["vote_id"], first.json()["voted_at"],
    )  # fmt: skip
    assert web.store.votes.count() == 1


def test_client_clock_cannot_extend_the_undo_time(web: Web):
    """Whoever sends the time of the old vote, or an earlier one, says that no time has passed."""
    web.publish(2)
    ann = web.client("annotator")
    first_card, second_card = lease(ann)
    first = vote(ann, first_card["card_id"]).json()
    before = (web.clock.now() - timedelta(hours=2)).isoformat()
    backdated = vote(ann, second_card["card_id"], voted_at=before).json()
    for shift, ok in (
        (timedelta(minutes=55), True),
        (timedelta(minutes=61), False),
        (timedelta(days=3), False),
    ):
        web.clock.shift = shift
        for old, card in ((first, first_card), (backdated, second_card)):
            cast_at = web.store.votes.get(old["vote_id"]).voted_at
            early = vote(
                ann,
                card["card_id"],
                "b",
                supersedes=old["vote_id"],
                voted_at=(cast_at - timedelta(seconds=1)).isoformat(),
            )
            assert early.status_code == 409, "time goes forwards"
            if not ok:
                late = vote(
                    ann,
                    card["card_id"],
                    "b",
                    supersedes=old["vote_id"],
                    voted_at=cast_at.isoformat(),
                )
                assert (late.status_code, late.json()["type"]) == (
                    409,
                    "urn:rlhf:problem:undo_is_over",
                )
                undo = vote(
                    ann,
                    card["card_id"],
                    "skip",
                    supersedes=old["vote_id"],
                    voted_at=cast_at.isoformat(),
                    flags=["undone"],
                )
                assert undo.status_code == 409
    assert web.store.votes.count() == 2
    web.clock.shift = timedelta(minutes=55)
    waited = (web.store.votes.get(first["vote_id"]).voted_at + timedelta(seconds=3)).isoformat()
    assert (
        vote(
            ann, first_card["card_id"], "b", supersedes=first["vote_id"], voted_at=waited
        ).status_code
        == 201
    ), "it was in an outbox"


def test_vote_of_another_person_cannot_be_undone(web: Web):
    web.publish(1, overlap=2)
    owner, other = web.client("annotator"), web.client("annotator")
    first = vote(owner, lease(owner)[0]["card_id"]).json()
    assert vote(other, lease(other)[0]["card_id"], supersedes=first["vote_id"]).status_code == 404


def test_refused_undo_does_not_reveal_the_comparison(web: Web):
    """Annotators know cards: an id would tell them which cards are on one comparison."""
    ids = web.publish(2)
    ann = web.client("annotator")
    first, second = (card["card_id"] for card in lease(ann, 2))
    refused = vote(ann, second, supersedes=vote(ann, first).json()["vote_id"])
    assert (refused.status_code, "on this comparison" in refused.json()["detail"]) == (422, True)
    assert not any(comparison_id in refused.text for comparison_id in ids)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"choice": "c"}, "body.choice"),
        ({"strength": 5}, "body.strength"),
        ({"stated_confidence": 1.5}, "body.stated_confidence"),
        ({"duration_s": -1}, "body.duration_s"),
        ({"reason": "a\x00b"}, "body.reason"),
        ({"reason": "x" * 20_001}, "body.reason"),
        ({"dimensions": {"beauty": "a"}}, "body.dimensions.beauty"),
        (
            {"highlights": [{"side": "a", "start": 0, "end": 10_000, "sign": "+"}]},
            "body.highlights.0.end",
        ),
        ({"highlights": [{"side": "a", "start": 3, "end": 3, "sign": "+"}]}, "body.highlights.0"),
        ({"flags": ["undone"]}, "body.flags"),
        ({"voted_at": "2026-01-02T12:00:00"}, "body.voted_at"),
        ({"voted_at": "1999-01-02T12:00:00Z"}, "body.voted_at"),
        ({"colour": "red"}, "body.colour"),
        ({"card_id": None}, "body.card_id"),
    ],
)
def test_invalid_vote_names_its_fields(web: Web, wrong: dict, path: str):
    web.publish(1)
    ann = web.client("annotator")
    body = {"card_id": lease(ann)[0]["card_id"], "choice": "a", **wrong}
    answer = ann.post("/votes", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422, answer.text
    assert path in [error["path"] for error in answer.json()["errors"]]
    assert web.store.votes.count() == 0


def test_a_vote_without_a_key_is_refused(web: Web):
    web.publish(1)
    ann = web.client("annotator")
    answer = ann.post("/votes", json={"card_id": lease(ann)[0]["card_id"], "choice": "a"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "header.Idempotency-Key"


def test_required_reason_is_enforced(web: Web):
    web.rule(requires_reason=True)
    web.publish(3)
    ann = web.client("annotator")
    card, two, _ = lease(ann)
    assert vote(ann, card["card_id"]).status_code == 422
    assert vote(ann, card["card_id"], reason="  ").status_code == 422
    assert vote(ann, card["card_id"], reason="truer").status_code == 201
    assert vote(ann, two["card_id"], "skip").status_code == 201


def test_vote_of_a_fast_clock_counts_as_now(web: Web):
    web.publish(1)
    ann = web.client("annotator")
    (card,) = lease(ann)
    body = {"voted_at": "2100-01-01T00:00:00Z"}
    first = vote(ann, card["card_id"], key="k", **body)
    assert first.status_code == 201
    assert first.json()["voted_at"] <= first.json()["received_at"]
    assert vote(ann, card["card_id"], key="k", **body).text == first.text


def test_vote_by_comparison_needs_read_permission(web: Web):
    (c,) = web.publish(1, offer=False)
    body = {"comparison_id": c, "choice": "b", "strength": 2}
    assert (
        web.client("annotator")
        .post("/votes", json=body, headers={"Idempotency-Key": "k"})
        .status_code
        == 403
    )
    answer = web.client("curator").post("/votes", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["comparison_id"]) == (201, c)
    stored = web.store.votes.get(answer.json()["vote_id"])
    assert (stored.choice, stored.is_swapped) == (Choice.B, None)
    missing = web.client("curator").post(
        "/votes", json={**body, "comparison_id": "nope"}, headers={"Idempotency-Key": "k"}
    )
    assert missing.status_code == 404


def test_votes_of_a_service_are_votes_of_a_machine(web: Web):
    web.publish(1)
    robot = web.client(user=web.add("admin", kind="service"))
    answer = vote(robot, lease(robot)[0]["card_id"])
    assert web.store.votes.get(answer.json()["vote_id"]).annotator_kind == AnnotatorKind.MACHINE


def test_batch_is_answered_vote_by_vote(web: Web):
    web.publish(3)
    ann = web.client("annotator")
    first, two, three = (card["card_id"] for card in lease(ann))
    batch = [
        {"idempotency_key": "1", "card_id": first, "choice": "a"},
        {"idempotency_key": "2", "card_id": "nope", "choice": "a"},
        {"idempotency_key": "3", "card_id": two, "choice": "purple"},
        {"idempotency_key": "4", "card_id": two, "choice": "tie", "strength": 3},
        {"idempotency_key": "5", "card_id": three, "choice": "b"},
        {"idempotency_key": "6", "card_id": three, "choice": "a"},
        {"idempotency_key": "ké", "card_id": three, "choice": "b"},
        "no vote at all",
    ]
    answer = ann.post("/votes:batch", json={"votes": batch})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["status"] for result in results] == [201, 404, 422, 422, 201, 409, 422, 422]
    assert results[2]["problem"]["errors"][0]["path"] == "body.votes.2.choice"
    assert web.store.votes.count() == 2
    again = ann.post("/votes:batch", json={"votes": batch}).json()["results"]
    assert [(r["status"], (r["vote"] or {}).get("vote_id")) for r in again] == [
        (r["status"], (r["vote"] or {}).get("vote_id")) for r in results
    ]
    assert web.store.votes.count() == 2


def test_own_votes_are_listed_as_cast(web: Web):
    web.publish(6)
    ann = web.client("annotator")
    for i, card in enumerate(lease(ann, 6)):
        assert vote(ann, card["card_id"], "a" if i % 2 else "b", reason=f"r{i}").status_code == 201
    first = ann.get("/me/votes", params={"limit": 4}).json()
    rest = ann.get("/me/votes", params={"limit": 4, "cursor": first["next"]}).json()
    items = first["items"] + rest["items"]
    assert [(item["reason"], item["choice"]) for item in items] == [
        (f"r{i}", "a" if i % 2 else "b") for i in reversed(range(6))
    ]
    assert rest["next"] is None
