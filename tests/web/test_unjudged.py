"""Who may vote judges first and reads others' votes afterwards, by every way there is; the seed is
no way round.
"""

import csv
import io
import uuid

import httpx
import pytest

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.pagination import parse_cursor
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite

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


def test_no_page_and_no_cursor_tells_of_votes_that_a_reader_may_not_see(web: Web):
    """Else words are tried against reasons that nobody may read yet, and annotators against
    comparisons.
    """
    ids = web.publish(5, overlap=2)
    ann, curator = web.client("annotator"), web.client("curator")
    judge(ann, 5)
    asked = (
        {},
        {"q": "reason"},
        {"q": "led by"},
        {"day": str(web.clock.now().date())},
        {"annotator_id": ann.user.user_id},
        {"comparison_id": ids[1], "annotator_id": ann.user.user_id},
        {"mark": "too_fast"},
        {"mark": "duplicate", "annotator_id": ann.user.user_id},
    )
    for params in asked:
        assert curator.get("/votes", params={**params, "limit": 1}).json() == {
            "items": [],
            "next": None,
        }, params
    cast(curator, ids[4])
    cast(curator, ids[0])
    for page in (
        {"limit": 1},
        {"limit": 1, "annotator_id": ann.user.user_id},
        {"limit": 1, "q": "reason"},
    ):
        answer = curator.get("/votes", params=page).json()
        assert len(answer["items"]) == 1, page
        assert answer["next"] is not None, page
        while answer["next"] is not None:
            answer = curator.get("/votes", params={**page, "cursor": answer["next"]}).json()
            assert answer["items"] or answer["next"] is None, "a page of hidden votes"


def test_marked_votes_are_counted_off_without_those_that_a_reader_may_not_see(web: Web):
    ids = web.publish(4, overlap=2)
    ann, curator = web.client("annotator"), web.client("curator")
    others = [web.client(user=web.add("curator")) for _ in ids]
    for other, one in zip(others, ids, strict=True):
        cast(other, one, duration_s=0.01)
    cast(curator, ids[1], duration_s=0.01)
    answer = curator.get("/votes", params={"mark": "too_fast", "limit": 1}).json()
    found = [item["comparison_id"] for item in answer["items"]]
    while answer["next"] is not None:
        answer = curator.get(
            "/votes", params={"mark": "too_fast", "limit": 1, "cursor": answer["next"]}
        ).json()
        assert answer["items"] or answer["next"] is None, "a page of hidden votes"
        found += [item["comparison_id"] for item in answer["items"]]
    assert found == [ids[1], ids[1]]
    assert ann.get("/votes", params={"mark": "too_fast"}).status_code == 403


def test_what_was_taken_back_shows_nothing_any_more(web: Web):
    (one,) = web.publish(1, overlap=2)
    ann, curator = web.client("annotator"), web.client("curator")
    judge(ann, 1)
    mine = cast(curator, one)
    assert len(read(curator)) == 2
    cast(curator, one, "skip", supersedes=mine["vote_id"], flags=["undone"])
    assert {annotator for _, annotator in read(curator)} == {curator.user.user_id}


@on_sqlite
def test_pages_and_files_show_no_more_than_the_api(web: Web):
    ids = web.publish(3, overlap=2)
    ann, curator = web.add("annotator"), web.add("curator")
    judge(web.client(user=ann), 3)
    cast(web.client(user=curator), ids[0])
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser, admin = pages.browser(curator), pages.browser(pages.add("admin"))
        listed = browser.get(f"{server.url}/votes").text
        assert listed.count(REASON) == 1
        assert "only for comparisons that you have judged" in listed
        assert "left out" not in admin.get(f"{server.url}/votes").text
        rows = list(csv.DictReader(io.StringIO(browser.get(f"{server.url}/votes.csv").text)))
        assert sorted((row["comparison_id"], row["annotator_id"]) for row in rows) == sorted(
            [(ids[0], ann.user_id), (ids[0], curator.user_id)]
        )
        assert (
            len(list(csv.DictReader(io.StringIO(admin.get(f"{server.url}/votes.csv").text)))) == 4
        )
        judged, unjudged = (browser.get(f"{server.url}/comparisons/{one}").text for one in ids[:2])
        assert REASON in judged
        assert REASON not in unjudged
        assert "after you have judged it" in unjudged
        assert "No votes yet" not in unjudged
        assert REASON in admin.get(f"{server.url}/comparisons/{ids[1]}").text


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


def test_nothing_of_a_comparison_tells_that_it_is_a_correction_before_it_is_judged(web: Web):
    (other, _) = web.publish(2, offer=False, source="a file")
    author, curator = web.client("annotator"), web.client("curator")
    made = author.post("/feedback", json=CORRECTION).json()["comparison_id"]

    def sorted_as(client: httpx.Client, comparison_id: str) -> tuple:
        one = client.get(f"/comparisons/{comparison_id}").json()
        assert one in client.get("/comparisons").json()["items"]
        return one["source"], one["category"], one["prompt_id"]

    assert sorted_as(curator, made) == sorted_as(curator, other) == (None, None, None)
    first = curator.get("/comparisons", params={"limit": 1}).json()
    # A correction's place is drawn: it may be that of another comparison, where no two others share
    # one.
    assert parse_cursor(first["next"], str) == (first["items"][0]["comparison_id"],)
    for comparison_id in (made, other):
        cast(curator, comparison_id)
    for reader in (curator, web.client("engineer"), web.client("admin")):
        assert sorted_as(reader, made)[:2] == ("correction", "correction")
        assert sorted_as(reader, other) == ("a file", "factual", "pc0")


def test_a_correction_is_offered_by_its_id_alone(web: Web):
    web.publish(2, offer=False)
    robot, engineer = web.client(user=web.add("engineer", kind="service")), web.client("engineer")
    made = robot.post("/feedback", json=CORRECTION).json()["comparison_id"]
    day = web.store.comparisons.with_ids([made])["day"].iloc[0]
    assert made not in web.store.comparisons.find_offerable_ids()
    assert (
        engineer.post("/comparisons:offer", json={"all_unvoted": True}).json()["n_comparisons"] == 2
    )
    assert engineer.post("/comparisons:offer", json={"day": str(day)}).json()["n_comparisons"] == 0
    assert engineer.post("/comparisons:offer", json={"ids": [made]}).json() == {
        "n_comparisons": 1,
        "n_slots": 1,
    }


@on_sqlite
def test_the_page_and_file_of_feedback_show_no_more_than_the_api(web: Web):
    author, curator = web.client("annotator"), web.add("curator")
    judged, unjudged = (
        author.post("/feedback", json={**CORRECTION, "prompt": f"{n}+2?"}).json() for n in (2, 3)
    )
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser, admin = pages.browser(curator), pages.browser(pages.add("admin"))
        assert "No feedback yet" not in browser.get(f"{server.url}/feedback").text
        cast(web.client(user=curator), judged["comparison_id"])
        shown = [client.get(f"{server.url}/feedback").text for client in (browser, admin)]
        assert [text.count("four of them") for text in shown] == [1, 2]
        assert ["only for comparisons that you have judged" in text for text in shown] == [
            True,
            False,
        ]
        files = [
            list(csv.DictReader(io.StringIO(client.get(f"{server.url}/feedback.csv").text)))
            for client in (browser, admin)
        ]
        assert [[row["comparison_id"] for row in rows] for rows in files] == [
            [judged["comparison_id"]], [unjudged["comparison_id"], judged["comparison_id"]],
        ]  # fmt: skip
        for path in (f"/comparisons/{unjudged['comparison_id']}", "/comparisons.csv"):
            texts = [client.get(f"{server.url}{path}").text for client in (browser, admin)]
            assert [
                text.count(">correction<") + text.count(",correction,") > 0 for text in texts
            ] == [path.endswith("csv"), True], path


@pytest.mark.parametrize(
    ("roles", "is_shown"),
    [
        (["annotator"], False),
        (["curator"], False),
        (["engineer"], False),
        (["auditor"], True),
        (["admin"], True),
        (["auditor", "curator"], False),
    ],
)
@on_sqlite
def test_the_seed_is_told_to_nobody_who_votes(web: Web, roles: list[str], is_shown: bool):
    reader = web.client(user=web.add(*roles))
    assert (reader.get("/rules").json()["rules"]["seed"] is not None) == is_shown


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
