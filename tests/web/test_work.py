"""The curator's side over HTTP: comparisons offered, guidelines and rules edited, users, consensus,
progress, feedback, audit.
"""

import json
import uuid

import httpx
import pytest

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, Choice
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.preference_pairs import make_pairs
from tests.web.conftest import DAY, Web


def judge_all(client: httpx.Client, choice: str = "a", **more: object) -> list[dict]:
    receipts = []
    while cards := client.post("/cards:lease", json={"n": 20}).json()["cards"]:
        for card in cards:
            body = {"card_id": card["card_id"], "choice": choice, **more}
            answer = client.post(
                "/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}
            )
            assert answer.status_code == 201, answer.text
            receipts.append(answer.json())
    return receipts


def test_comparisons_are_offered_by_id_day_or_without_votes(web: Web):
    web.publish(4, offer=False)
    web.publish(2, offer=False, prefix="d", day="2026-01-03")
    engineer = web.client("engineer")
    web.client("curator").post(
        "/votes", json={"comparison_id": "c0000", "choice": "a"}, headers={"Idempotency-Key": "k"}
    )
    assert engineer.post("/comparisons:offer", json={"ids": ["c0000"], "overlap": 3}).json() == {
        "n_comparisons": 1,
        "n_wanted": 3,
    }
    assert engineer.post("/comparisons:offer", json={"day": "2026-01-03"}).json() == {
        "n_comparisons": 2,
        "n_wanted": 2,
    }
    assert engineer.post("/comparisons:offer", json={"all_unvoted": True}).json() == {
        "n_comparisons": 5,
        "n_wanted": 3,
    }
    for wrong in ({}, {"ids": ["c0000"], "day": DAY}, {"day": DAY, "all_unvoted": True}):
        assert engineer.post("/comparisons:offer", json=wrong).status_code == 422
    assert engineer.post("/comparisons:offer", json={"ids": ["c0000", "none"]}).status_code == 404
    assert engineer.post("/comparisons:withdraw", json={"ids": ["c0000", "d0000"]}).json() == {
        "n_withdrawn": 4
    }


def test_empty_table_says_why(web: Web):
    ann, bob = web.client("annotator"), web.client("annotator")

    def why(client: httpx.Client) -> tuple:
        answer = client.post("/cards:lease", json={"n": 2}).json()
        return len(answer["cards"]), answer["reason_empty"]

    assert why(ann) == (0, "nothing_open")
    web.publish(2)
    assert why(ann) == (2, None)
    assert why(bob) == (0, "nothing_open")
    judge_all(ann)
    assert why(ann) == (0, "nothing_open")
    web.publish(9, prefix="d")
    web.rule(max_votes_per_day=4)
    judge_all(ann)
    assert why(ann) == (0, "cap_reached")
    assert web.store.votes.count() == 4


def test_stale_rules_replace_nothing(web: Web):
    curator = web.client("curator")
    read = curator.get("/rules").headers["ETag"]
    rules = {"overlap": 4}
    assert curator.put("/rules", json=rules).status_code == 428
    assert curator.put("/rules", json=rules, headers={"If-Match": read}).status_code == 200
    stale = curator.put("/rules", json={"overlap": 5}, headers={"If-Match": read})
    assert stale.status_code == 412
    assert curator.get("/rules").json()["rules"]["overlap"] == 4


def test_guidelines_are_versioned_and_a_vote_keeps_its_version(web: Web):
    web.publish(2)
    curator, ann = web.client("curator"), web.client("annotator")
    assert curator.get("/guidelines").headers["ETag"] == '"0"'
    assert curator.post("/guidelines", json={"text": "One"}).status_code == 428
    first = curator.post("/guidelines", json={"text": "One"}, headers={"If-Match": '"0"'})
    assert (first.status_code, first.headers["ETag"]) == (201, '"1"')
    assert (
        curator.post("/guidelines", json={"text": "Lost"}, headers={"If-Match": '"0"'}).status_code
        == 412
    )
    assert (
        curator.post("/guidelines", json={"text": "Bad"}, headers={"If-Match": "x"}).status_code
        == 422
    )
    card, two = ann.post("/cards:lease").json()["cards"]
    vote = ann.post(
        "/votes",
        json={"card_id": card["card_id"], "choice": "a"},
        headers={"Idempotency-Key": "1"},
    ).json()
    assert web.store.votes.get(vote["vote_id"]).guideline_version == 1
    curator.post("/guidelines", json={"text": "Two"}, headers={"If-Match": '"1"'})
    # pressed before there was a second version
    late = {"card_id": two["card_id"], "choice": "a", "guideline_version": 1}
    vote = ann.post("/votes", json=late, headers={"Idempotency-Key": "2"})
    assert web.store.votes.get(vote.json()["vote_id"]).guideline_version == 1
    assert ann.post("/votes", json=late, headers={"Idempotency-Key": "2"}).text == vote.text
    assert ann.post(
        "/votes", json={**late, "guideline_version": 2}, headers={"Idempotency-Key": "2"}
    ).status_code in (409, 422)
    assert [g["text"] for g in ann.get("/guidelines").json()["items"]] == ["Two", "One"]
    assert ann.get("/guidelines/1").json()["text"] == "One"
    assert ann.get("/guidelines/3").status_code == 404


def test_progress_counts_standing_votes(web: Web):
    web.publish(10)
    ann, reader = web.client("annotator"), web.client("approver")
    cards = ann.post("/cards:lease", json={"n": 10}).json()["cards"]

    def vote(i: int, choice: str, **more: object) -> dict:
        body = {
            "card_id": cards[i]["card_id"],
            "choice": choice,
            "duration_s": float(i),
            **more,
        }
        return ann.post("/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}).json()

    for i in range(4):
        vote(i, "a")
    assert reader.get("/progress").json()["votes"] == 4
    changed = vote(4, "b")
    vote(4, "tie", supersedes=changed["vote_id"])
    taken_back = vote(5, "b")
    undone = vote(5, "skip", supersedes=taken_back["vote_id"], flags=["undone"])
    vote(6, "skip")
    progress = reader.get("/progress").json()
    assert (
        progress["votes"],
        sum(day["n"] for day in progress["votes_by_day"]),
        progress["annotators"][0]["n"],
    ) == (5, 5, 5)
    assert (progress["annotators"][0]["annotator_id"], progress["annotators"][0]["name"]) == (
        ann.user.user_id,
        None,
    )
    assert progress["annotators"][0]["median_seconds"] is not None
    vote(5, "a", supersedes=undone["vote_id"])
    progress = web.client("admin").get("/progress").json()
    assert (progress["votes"], progress["annotators"][0]["name"]) == (6, ann.user.name)
    assert progress["work"] == {
        "n_comparisons": 10,
        "n_wanted": 10,
        "n_done": 6,
        "n_leased": 3,
        "n_open": 1,
    }
    metrics = reader.get("/metrics").json()
    assert (metrics["votes"], metrics["skips"], metrics["done"], metrics["comparisons"]) == (
        6,
        1,
        6,
        10,
    )


def test_feedback_is_stored_and_a_correction_becomes_a_vote(web: Web):
    robot, reader = web.client("engineer"), web.client("engineer")
    for i in range(3):
        body = {
            "kind": "thumbs",
            "value": i % 2,
            "completion_id": f"x{i}",
            "session_id": "s1",
            "tags": ["web"],
        }
        assert robot.post("/feedback", json=body).status_code == 201
    body = {
        "kind": "correction",
        "prompt": "2+2?",
        "completion": "5",
        "correction": "4",
        "session_id": "s2",
        "text": "arithmetic",
    }
    feedback = robot.post("/feedback", json=body).json()
    vote = web.store.votes.get(feedback["vote_id"])
    texts = web.store.comparisons.texts([feedback["comparison_id"]])[feedback["comparison_id"]]
    sides = {Choice.A: texts.completion_a, Choice.B: texts.completion_b}
    assert (sides.pop(vote.choice), *sides.values()) == ("4", "5")
    assert [item["kind"] for item in reader.get("/feedback").json()["items"]] == ["correction"] + [
        "thumbs"
    ] * 3
    assert len(reader.get("/feedback", params={"session_id": "s1"}).json()["items"]) == 3
    assert feedback in reader.get("/feedback").json()["items"]
    for wrong in (
        {"kind": "thumbs", "value": 3, "completion": "x"},
        {"kind": "correction", "prompt": "p", "completion": "x", "correction": "x"},
        {"kind": "detailed", "text": "nice"},
        {"kind": "detailed", "text": "nice\x00", "completion": "x"},
        {"kind": "detailed", "text": "nice", "completion": "x", "given_at": "2026-01-02T12:00:00"},
        {**body, "given_at": "1999-01-01T00:00:00Z"},
        {**body, "given_at": "0001-01-01T00:00:00+14:00"},  # neither has a time in UTC
        {**body, "given_at": "9999-12-31T23:59:59-14:00"},
    ):
        assert robot.post("/feedback", json=wrong).status_code == 422, wrong


def test_service_names_the_author_of_a_correction(web: Web):
    """A chat backend posts what its users say: with an author it is a person's judgement, which
    training takes; without, a machine's.
    """
    robot, other = (web.client(user=web.add("engineer", kind="service")) for _ in range(2))
    correction = {"kind": "correction", "prompt": "2+2?", "completion": "5", "correction": "4"}
    feedback = robot.post("/feedback", json={**correction, "author": "vera@chat"}).json()
    again = other.post("/feedback", json={**correction, "author": "vera@chat"}).json()
    anothers = robot.post(
        "/feedback", json={**correction, "author": feedback["author"][:-1]}
    ).json()
    bare = robot.post("/feedback", json=correction).json()
    assert feedback["author"].startswith("ann_")
    assert (
        feedback["author"]
        == Pseudonyms.load(web.settings.home)("vera@chat")
        == again["author"]
        != anothers["author"]
    )
    assert feedback["comparison_id"] == again["comparison_id"] != anothers["comparison_id"]
    votes = [web.store.votes.get(answer["vote_id"]) for answer in (feedback, bare)]
    assert [(vote.annotator_id, vote.annotator_kind) for vote in votes] == [
        (feedback["author"], AnnotatorKind.HUMAN), (robot.user.user_id, AnnotatorKind.MACHINE),
    ]  # fmt: skip
    own = [
        web.client(role).post("/feedback", json=correction).json()
        for role in ("annotator", "admin")
    ]
    votes += [web.store.votes.get(answer["vote_id"]) for answer in own]
    assert [vote.is_blind for vote in votes] == [None, False, True, False]
    comparisons = check_frame(
        web.store.comparisons.with_ids([feedback["comparison_id"], bare["comparison_id"]]),
        COMPARISONS,
    )
    cast = counting_votes(web.store.votes.log([str(votes[0].day)]))
    for answer, n_pairs in ((feedback, 1), (bare, 0)):
        of_it = cast[cast["comparison_id"] == answer["comparison_id"]]
        assert list(make_pairs(of_it, comparisons)[0]["chosen"]) == ["4"] * n_pairs
        assert make_pairs(of_it, comparisons)[1].n_machine == 1 - n_pairs
    assert (
        "vera"
        not in web.client("auditor").get("/audit/export").text
        + web.client("admin").get("/feedback").text
    )
    person = web.client("engineer").post("/feedback", json={**correction, "author": "vera@chat"})
    assert (person.status_code, person.json()["errors"][0]["path"]) == (422, "body.author")
    for wrong in ("", "x" * 129):
        assert robot.post("/feedback", json={**correction, "author": wrong}).status_code == 422


def test_audit_is_listed_exported_and_verified(web: Web):
    web.publish(5)
    judge_all(web.client("annotator"))
    auditor = web.client("auditor")
    verification = auditor.post("/audit:verify").json()
    assert (verification["holds"], verification["broken_at"]) == (True, None)
    assert verification["n_links"] == web.store.audit.head()[0]
    assert len(auditor.get("/audit", params={"action": "vote.cast"}).json()["items"]) == 5
    assert {
        item["action"]
        for item in auditor.get("/audit", params={"action": "users.*"}).json()["items"]
    } == {"users.add"}
    lines = auditor.get("/audit/export").text.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(
        range(1, verification["n_links"] + 1)
    )


def test_unresponsive_database_is_reported(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    client = web.client("annotator")
    assert web.anonymous().get("/readyz").status_code == 200
    monkeypatch.setattr(
        web.store.votes,
        "max_seq",
        lambda: (_ for _ in ()).throw(StoreError("The store /home/ann/store.db: gone.")),
    )
    answer = web.anonymous().get("/readyz")
    assert "/home/ann" not in answer.text  # the log alone names it
    assert "/home/ann/store.db: gone" in caplog.text
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert web.anonymous().get("/healthz").status_code == 200
    assert client.get("/me").status_code == 200
