"""Votes through the API: one key, one row; what was answered survives a kill; nobody votes twice on
one card.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.acceptance.home import Home, Person, Server, rows

N_KILLS = 3
N_VOTERS = 4


def lease(person: Person, n: int = 1) -> list[dict[str, str]]:
    answer = person.api.post("/api/v1/cards:lease", json={"n": n})
    assert answer.status_code == 200, answer.text
    cards: list[dict[str, str]] = answer.json()["cards"]
    return cards


def cast(person: Person, key: str, **body: Any) -> httpx.Response:
    return person.api.post("/api/v1/votes", json=body, headers={"Idempotency-Key": key})


def test_fifty_posts_with_one_key_are_one_vote(site: Server) -> None:
    ann = site.add("annotator")
    [card] = lease(ann)
    body = {"card_id": card["card_id"], "choice": "a", "strength": 2}

    def post(_: int) -> tuple[int, str]:
        answer = cast(ann, "one", **body)
        return answer.status_code, answer.json().get("vote_id", "")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(50)))
    assert {status for status, _ in answers} == {201}
    [vote] = rows(site.admin, "votes", annotator_id=ann.user_id)
    assert {vote_id for _, vote_id in answers} == {vote["vote_id"]}


def test_another_vote_under_a_used_key_is_refused(site: Server) -> None:
    ann = site.add("annotator")
    [card] = lease(ann)
    assert cast(ann, "k", card_id=card["card_id"], choice="a").status_code == 201
    other = cast(ann, "k", card_id=card["card_id"], choice="b")
    assert other.status_code == 422
    assert [vote["choice"] for vote in rows(ann.api, "me/votes")] == ["a"]


def test_a_card_takes_one_vote_of_an_annotator(site: Server) -> None:
    ann = site.add("annotator")
    [card] = lease(ann)
    assert cast(ann, "1", card_id=card["card_id"], choice="a").status_code == 201
    assert cast(ann, "2", card_id=card["card_id"], choice="b").status_code == 409
    assert len(rows(ann.api, "me/votes")) == 1


def test_overlap_one_is_dealt_to_one_annotator(site: Server) -> None:
    ann, bo = site.add("annotator"), site.add("annotator")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda annotator: lease(annotator, 5), (ann, bo))
    assert len(first) == len(second) == 5
    assert {card["prompt"] for card in first}.isdisjoint(card["prompt"] for card in second)


def test_an_undone_vote_does_not_count_and_its_card_comes_back(site: Server) -> None:
    ann = site.add("annotator")
    [card] = lease(ann)
    of_card = {"card_id": card["card_id"]}
    vote_id = cast(ann, "made", **of_card, choice="a").json()["vote_id"]
    undo = cast(ann, "undo", **of_card, choice="skip", flags=["undone"], supersedes=vote_id)
    assert undo.status_code == 201, undo.text
    assert [back["prompt"] for back in lease(ann)] == [card["prompt"]]
    assert cast(ann, "again", **of_card, choice="b").status_code == 201
    votes = rows(site.admin, "votes", annotator_id=ann.user_id)
    assert [vote["is_superseded"] for vote in votes] == [False, True, True]
    assert [vote["is_counting"] for vote in votes] == [True, False, False]


def test_displayed_sides_are_stored_as_a_and_b(site: Server) -> None:
    """`a` of a card is what stands left, whichever completion that is."""
    ann = site.add("annotator")
    card_of = {}
    for n in range(6):
        [card] = lease(ann)
        key = str(n)
        answer = cast(ann, key, card_id=card["card_id"], choice="a", strength=1)
        card_of[answer.json()["vote_id"]] = card
    for vote in rows(site.admin, "votes", annotator_id=ann.user_id):
        card = card_of[vote["vote_id"]]
        comparison = site.admin.get(f"/api/v1/comparisons/{vote['comparison_id']}").json()
        assert comparison[f"completion_{vote['choice']}"] == card["left"]
        assert comparison["prompt"] == card["prompt"]


class Voter(threading.Thread):
    """Votes as the page does: what got no answer is sent again with the same key."""

    def __init__(self, person: Person, has_ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.person = person
        self.has_ended = has_ended
        self.answered: dict[str, str] = {}  # key -> vote id
        self.faults: list[str] = []

    def run(self) -> None:
        draw = random.Random(self.person.email)
        while not self.has_ended.is_set():
            leased = self.post("cards:lease", {"n": 5}, str(uuid.uuid4()))
            for card in leased["cards"] if leased else ():
                vote = {"card_id": card["card_id"], "choice": draw.choice("ab")}
                key = str(uuid.uuid4())
                receipt = self.post("votes", vote, key)
                if receipt is not None:
                    self.answered[key] = receipt["vote_id"]

    def post(self, path: str, body: object, key: str) -> dict[str, Any] | None:
        while not self.has_ended.is_set():
            try:
                answer = self.person.api.post(
                    f"/api/v1/{path}", json=body, headers={"Idempotency-Key": key}
                )
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if answer.status_code in (200, 201):
                receipt: dict[str, Any] = answer.json()
                return receipt
            if answer.status_code not in (409, 503):  # running still, or not ready yet
                self.faults.append(f"{path}: {answer.status_code} {answer.text}")
                return None
            time.sleep(0.02)
        return None


def test_killed_server_loses_no_vote_it_answered(home: Home, serve: Callable) -> None:
    home.offer(2000)
    server = serve(home)
    has_ended = threading.Event()
    voters = [Voter(server.add("annotator"), has_ended) for _ in range(N_VOTERS)]
    for voter in voters:
        voter.start()

    def wait_for(n_more: int) -> None:
        n_target = sum(len(voter.answered) for voter in voters) + n_more
        deadline = time.monotonic() + 120
        while sum(len(voter.answered) for voter in voters) < n_target:
            assert time.monotonic() < deadline, [voter.faults for voter in voters]
            time.sleep(0.002)

    draw = random.Random(1)
    for _ in range(N_KILLS):
        wait_for(draw.randint(20, 40))
        server.kill()
        server.start()
    wait_for(20)
    has_ended.set()
    for voter in voters:
        voter.join(60)
    server.kill()
    assert [fault for voter in voters for fault in voter.faults] == []
    answered = [vote_id for voter in voters for vote_id in voter.answered.values()]
    assert len(answered) == len(set(answered)) > 20 * (N_KILLS + 1)
    home.run("audit", "verify")
    server.start()
    stored = rows(server.admin, "votes", limit=200)
    assert {vote["vote_id"] for vote in stored} >= set(answered)
    assert sorted(vote["seq"] for vote in stored) == list(range(1, len(stored) + 1))
    for voter in voters:
        cards = [vote["card_id"] for vote in rows(voter.person.api, "me/votes", limit=200)]
        assert len(cards) == len(set(cards)), "what was sent again is stored once"
