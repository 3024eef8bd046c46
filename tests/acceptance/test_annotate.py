"""Voting by keyboard on the annotate page, in Chromium."""

from typing import Any

import pytest

from tests.acceptance.annotator import Annotator, until
from tests.acceptance.home import Server, rows

# key -> (choice, strength); a is what stands left
SCALE = {
    "1": ("a", 4),
    "2": ("a", 3),
    "3": ("a", 2),
    "4": ("a", 1),
    "5": ("tie", None),
    "6": ("b", 1),
    "7": ("b", 2),
    "8": ("b", 3),
    "9": ("b", 4),
    "0": ("both_bad", None),
    "s": ("skip", None),
}


@pytest.fixture
def ann(site: Server, context: Any) -> Annotator:
    annotator = Annotator(site, site.add("annotator"), context)
    annotator.log_in()
    return annotator


def test_twenty_keyboard_votes_survive_a_network_cut(
    ann: Annotator, site: Server, context: Any
) -> None:
    site.home.offer(30, prefix="keys")
    keys = "1234567890s123456789"
    cards = [ann.vote(key) for key in keys[:8]]
    ann.send_all()
    assert len(ann.votes()) == 8
    ann.page.wait_for_timeout(500)  # until the next cards lie ready
    context.set_offline(True)
    cards += [ann.vote(key) for key in keys[8:11]]
    assert ann.page.inner_text("#outbox").startswith("3 ")
    assert len(ann.votes()) == 8
    context.set_offline(False)
    ann.send_all()
    cards += [ann.vote(key) for key in keys[11:]]
    ann.send_all()
    votes = ann.votes()
    assert [(vote["choice"], vote["strength"]) for vote in votes] == [SCALE[key] for key in keys]
    assert ann.page.inner_text("#today") == "19", "a skip is no judgement"
    stored = {
        vote["vote_id"]: vote for vote in rows(site.admin, "votes", annotator_id=ann.person.user_id)
    }
    assert len(stored) == 20
    for key, (prompt, left, right), vote in zip(keys, cards, votes, strict=True):
        row = stored[vote["vote_id"]]
        comparison = site.admin.get(f"/api/v1/comparisons/{row['comparison_id']}").json()
        assert comparison["prompt"] == prompt
        assert row["origin"] == "page"
        side = SCALE[key][0]
        if side in ("a", "b"):
            chosen = comparison[f"completion_{row['choice']}"]
            assert chosen == (left if side == "a" else right), "what was seen there is stored"


def test_votes_survive_a_reload_without_a_network(ann: Annotator, context: Any) -> None:
    ann.page.wait_for_timeout(500)
    context.set_offline(True)
    ann.vote("1")
    ann.vote("9")
    context.set_offline(False)
    ann.page.close()
    ann.page = context.new_page()
    ann.open()
    ann.send_all()
    until(lambda: len(ann.votes()) == 2, "both votes")
    assert [(vote["choice"], vote["strength"]) for vote in ann.votes()] == [("a", 4), ("b", 4)]


def test_undo_brings_the_card_back_and_the_next_key_counts(ann: Annotator, site: Server) -> None:
    first = ann.vote("1")
    ann.press("u")
    until(lambda: ann.card() == first, "the card again")
    assert ann.vote("8") == first
    ann.send_all()
    until(lambda: len(ann.votes()) == 3, "vote, undo and vote")
    stored = rows(site.admin, "votes", annotator_id=ann.person.user_id)[::-1]
    assert len({vote["comparison_id"] for vote in stored}) == 1
    assert [vote["is_counting"] for vote in stored] == [False, False, True]
    assert [vote["strength"] for vote in stored] == [4, None, 3]


def test_two_tabs_never_show_one_card_at_once(ann: Annotator, site: Server) -> None:
    site.home.offer(10, prefix="tabs")
    other = ann.in_another_tab()
    assert ann.card() != other.card()
    cards = [tab.vote(key) for key in "19" for tab in (ann, other)]
    ann.send_all()
    other.send_all()
    until(lambda: len(ann.votes()) == 4, "four votes")
    assert len(set(cards)) == 4
    stored = rows(site.admin, "votes", annotator_id=ann.person.user_id)
    assert len({vote["comparison_id"] for vote in stored}) == 4


def test_a_reason_and_a_confidence_are_stored_with_the_vote(ann: Annotator, site: Server) -> None:
    ann.press("r")
    ann.page.keyboard.type("1 is wrong <b>")
    for key in ("Enter", "c", "8"):
        ann.page.keyboard.press(key)
    assert ann.votes() == [], "digits there are no votes"
    ann.vote("2")
    ann.send_all()
    until(lambda: len(ann.votes()) == 1, "the vote")
    [vote] = ann.votes()
    assert (vote["reason"], vote["stated_confidence"]) == ("1 is wrong <b>", 0.8)
    assert (vote["choice"], vote["strength"]) == ("a", 3)
