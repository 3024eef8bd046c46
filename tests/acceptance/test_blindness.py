"""An annotator sees no other annotator's choice by any route.

Two copies of one home differ only in what Ann chooses there. Every answer that Bo gets must be the
same in both.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.home import Home, Server, rows
from tests.acceptance.test_routes import read_table
from tests.acceptance.test_votes import cast, lease

N_CARDS = 8
# Differs between any two answers: times, ports, and what a page draws for itself.
VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?|\d\d:\d\d|127\.0\.0\.1:\d+"
    r'|nonce[-="]+[\w-]+|"n_requests": ?\d+'
)
# In the order of a walk through the pages; ids of what Ann judged stand for the parameters.
QUERIES = ("", "?limit=3", "?q=text", "?mark=duplicate", "?status=done", "?state=disputed")


@pytest.fixture
def world(initialised: Path, tmp_path: Path) -> tuple[Home, str, str]:
    """A home with work for Ann and Bo, and a token of each. No server runs on it."""
    home = Home(shutil.copytree(initialised, tmp_path / "world"))
    server = Server(home)
    server.start()
    server.set_rules(overlap=2, repeat_share=0, gold_share=0)
    home.offer(N_CARDS)
    ann, bo = server.add("annotator"), server.add("annotator")
    [card] = lease(bo)
    assert cast(bo, "first", card_id=card["card_id"], choice="a").status_code == 201
    tokens = home.token(ann.email), home.token(bo.email)
    server.close()
    return home, *tokens


def answers_to_bo(
    home: Home, ann_token: str, bo_token: str, serve: Callable[[Home], Server], choices: str
) -> dict[str, tuple[int, str]]:
    """What Bo gets after Ann chose `choices`, one a card in the order of their prompts."""
    server = serve(home)
    ann, bo = server.with_token(ann_token), server.with_token(bo_token)
    cards = ann.post("/api/v1/cards:lease", json={"n": N_CARDS}).json()["cards"]
    assert len(cards) == N_CARDS
    for card, choice in zip(sorted(cards, key=lambda c: c["prompt"]), choices, strict=True):
        body = {"card_id": card["card_id"], "choice": choice, "reason": choice * 9}
        key = {"Idempotency-Key": card["prompt"]}
        assert ann.post("/api/v1/votes", json=body, headers=key).status_code == 201
    own_votes = rows(ann, "me/votes")
    assert len(own_votes) == N_CARDS
    admin = server.with_token(home.token("admin@localhost"))
    votes = rows(admin, "votes")
    answers = {}
    for method, path in read_table():
        if method != "GET":
            continue
        for query in QUERIES:
            address = fill(path, votes[0]) + query
            with bo.stream("GET", address) as answer:
                text = next(answer.iter_text(), "") if "events" in path else answer.read().decode()
                answers[f"{path}{query}"] = answer.status_code, VOLATILE.sub("", text)
    leased = bo.post("/api/v1/cards:lease", json={"n": N_CARDS})
    texts = [sorted([c["prompt"], c["left"], c["right"]]) for c in leased.json()["cards"]]
    answers["lease"] = leased.status_code, str(sorted(texts))
    return answers


def fill(path: str, vote: dict[str, str]) -> str:
    """A path with ids of what Ann judged."""
    path = path.replace("{comparison_id}", vote["comparison_id"])
    path = path.replace("{user_id}", vote["annotator_id"])
    return re.sub(r"\{[^}]*\}", "1", path)


def test_no_answer_to_an_annotator_depends_on_others_choices(
    world: tuple[Home, str, str], serve: Callable[[Home], Server]
) -> None:
    home, *tokens = world
    twin = Home(shutil.copytree(home.path, home.path.parent / "twin"))
    first = answers_to_bo(home, *tokens, serve, "aaaaaaaa")
    other = answers_to_bo(twin, *tokens, serve, "bbabbabb")
    assert {path for path, (status, _) in first.items() if status == 200} >= {
        "/me",
        "/annotate",
        "/api/v1/me/votes",
        "/api/v1/me/statistics",
        "lease",
    }
    assert len(first) > 300
    assert [path for path in first if first[path] != other[path]] == []


def test_an_annotator_reads_no_votes_but_their_own(site: Server) -> None:
    ann, bo = site.add("annotator"), site.add("annotator")
    for n in range(3):
        [card] = lease(ann)
        of_card = {"card_id": card["card_id"], "choice": "a"}
        assert cast(ann, str(n), **of_card, reason="because").status_code == 201
    assert len(rows(ann.api, "me/votes")) == 3
    assert rows(bo.api, "me/votes") == []
    for path in ("votes", "consensus", "quality", "audit", "comparisons", "progress", "metrics"):
        assert bo.api.get(f"/api/v1/{path}").status_code == 403
        assert bo.api.get(f"/api/v1/{path}", params={"annotator_id": ann.user_id}).is_error


def test_card_reveals_no_model_and_no_reason(site: Server) -> None:
    ann = site.add("annotator")
    answer = ann.api.post("/api/v1/cards:lease", json={"n": 5})
    for card in answer.json()["cards"]:
        texts = {"prompt", "turns", "left", "right"}
        assert set(card) == {"card_id", "kind", "leased_until", *texts}
        assert card["kind"] == "comparison"
    assert "imported" not in answer.text
