"""Who may vote judges first and reads others' votes afterwards, by every way there is; the seed is
no way round.
"""

import uuid

import httpx

from tests.web.conftest import Web

REASON = "a reason nobody should be led by"


def cast(client: httpx.Client, comparison_id: str, choice: str = "a", **more: object) -> dict:
    body = {"comparison_id": comparison_id, "choice": choice, **more}
    answer = client.post("/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
    assert answer.status_code == 201, answer.text
    return answer.json()


def judge(client: httpx.Client, n: int) -> None:
    for card in client.post("/assignments:lease", json={"n": n}).json()["cards"]:
        body = {"assignment_id": card["assignment_id"], "choice": "b", "reason": REASON}
        assert (
            client.post(
                "/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}
            ).status_code
            == 201
        )


def read(client: httpx.Client, **params: object) -> list[tuple[str, str]]:
    """(comparison, annotator) of all votes that a reader is shown, page by page."""
    found, cursor = [], None
    while True:
        page = client.get(
            "/votes", params={"limit": 2, **params, **({"cursor": cursor} if cursor else {})}
        ).json()
        found += [(item["comparison_id"], item["annotator_id"]) for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return sorted(found)


def test_others_votes_are_read_after_ones_own(web: Web):
    ids = web.publish(5, overlap=2)
    ann, curator = web.client("annotator"), web.client("curator")
    judge(ann, 5)
    narrow = web.client(user=curator.user, scopes=["votes.read"])
    for reader in (curator, narrow):
        assert (
            read(reader)
            == read(reader, annotator_id=ann.user.user_id)
            == read(reader, comparison_id=ids[1])
            == []
        )
        assert REASON not in reader.get("/votes", params={"q": "reason"}).text
    cast(curator, ids[1])
    cast(curator, ids[2], "skip")
    mine, theirs = curator.user.user_id, ann.user.user_id
    for reader in (curator, narrow):
        assert read(reader) == sorted([(ids[1], mine), (ids[1], theirs), (ids[2], mine)])
        assert read(reader, comparison_id=ids[1]) == sorted([(ids[1], mine), (ids[1], theirs)])
        assert read(reader, q="reason") == [(ids[1], theirs)]
    everything = [(one, theirs) for one in ids]
    for role in ("engineer", "auditor", "admin"):  # they do not vote; an admin could take any role
        assert [one for one in read(web.client(role)) if one[1] == theirs] == everything, role
    voting_auditor = web.client(user=web.add("auditor", "annotator"))
    assert read(voting_auditor) == []


def test_what_was_taken_back_shows_nothing_any_more(web: Web):
    (one,) = web.publish(1, overlap=2)
    ann, curator = web.client("annotator"), web.client("curator")
    judge(ann, 1)
    mine = cast(curator, one)
    assert len(read(curator)) == 2
    cast(curator, one, "skip", supersedes=mine["vote_id"], flags=["undone"])
    assert {annotator for _, annotator in read(curator)} == {curator.user.user_id}


CORRECTION = {
    "kind": "correction",
    "prompt": "2+2?",
    "completion": "five of them",
    "correction": "four of them",
    "session_id": "s",
}


def entries(client: httpx.Client, **params: object) -> list[int]:
    """Ids of all feedback that a reader is shown, page by page."""
    found, cursor = [], None
    while True:
        page = client.get(
            "/feedback", params={"limit": 2, **params, **({"cursor": cursor} if cursor else {})}
        ).json()
        found += [item["feedback_id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return found


def test_a_correction_is_shown_to_who_votes_once_they_judged_what_it_corrects(web: Web):
    web.publish(2, offer=False, source="a file")
    author, curator = web.client("annotator"), web.client("curator")
    first, second = (
        author.post("/feedback", json={**CORRECTION, "prompt": f"{n}+2?"}).json() for n in (2, 3)
    )
    thumb = author.post(
        "/feedback", json={"kind": "thumbs", "value": 1, "completion_id": "x"}
    ).json()
    own = curator.post("/feedback", json=CORRECTION).json()
    everything = [one["feedback_id"] for one in (own, thumb, second, first)]
    for asked in (
        {"kind": "correction", "created_by": author.user.user_id},
        {"kind": "correction", "session_id": "s", "cursor": "WzRd"},
    ):
        answer = curator.get("/feedback", params={**asked, "limit": 1}).json()
        assert answer["items"] or answer["next"] is None, (
            "`next` tells of a correction that nobody may see yet"
        )
    for reader in (curator, web.client(user=curator.user, scopes=["feedback.read"])):
        assert entries(reader) == [own["feedback_id"], thumb["feedback_id"]]
        assert entries(reader, kind="correction", session_id="s") == [own["feedback_id"]]
        refused = reader.get(f"/feedback/{first['feedback_id']}")
        unknown = (
            reader.get("/feedback/999").json()["detail"].replace("999", str(first["feedback_id"]))
        )
        # as one that does not exist
        assert (refused.status_code, refused.json()["detail"]) == (404, unknown)
    cast(curator, first["comparison_id"])
    assert entries(curator) == [one["feedback_id"] for one in (own, thumb, first)]
    assert curator.get(f"/feedback/{first['feedback_id']}").json() == first
    for role in ("engineer", "admin"):
        reader = web.client(role)
        assert entries(reader) == everything
        assert reader.get(f"/feedback/{second['feedback_id']}").status_code == 200


def test_who_votes_edits_rules_and_neither_reads_nor_sets_the_seed(web: Web):
    curator, admin = web.client("curator"), web.client("admin")
    seed = web.store.rules.latest()[1].seed
    read = curator.get("/rules")
    sent = {**read.json()["rules"], "overlap": 2}
    assert sent["seed"] is None
    put = curator.put("/rules", json=sent, headers={"If-Match": read.headers["ETag"]})
    assert (put.status_code, put.json()["rules"]["overlap"], put.json()["rules"]["seed"]) == (
        200,
        2,
        None,
    )
    assert web.store.rules.latest()[1].seed == seed
    refused = curator.put(
        "/rules", json={**sent, "seed": 7}, headers={"If-Match": put.headers["ETag"]}
    )
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (403, "body.seed")
    assert web.store.rules.latest()[0] == put.json()["version"]
    changed = admin.put(
        "/rules", json={**sent, "seed": 7}, headers={"If-Match": put.headers["ETag"]}
    )
    assert (changed.status_code, changed.json()["rules"]["seed"]) == (200, 7)
