"""Somebody judges by keyboard alone, and what they said is what is stored."""

import time
from statistics import median
from typing import Any

import pytest

from rlhf_pipeline.records import Role
from rlhf_pipeline.votes.counting import counting, standing
from tests.browser.hands import (
    all_sent,
    at_the_desk,
    discard,
    log_in,
    look,
    press,
    read_card,
    refuse,
    select,
    until,
    vote,
    voted,
)
from tests.browser.people import MODELS, People

# The keys of the scale -> (side shown, strength); None where no side is better.
SCALE = {
    "1": ("left", 4),
    "2": ("left", 3),
    "3": ("left", 2),
    "4": ("left", 1),
    "6": ("right", 1),
    "7": ("right", 2),
    "8": ("right", 3),
    "9": ("right", 4),
}


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def test_twenty_votes_by_keyboard_are_twenty_rows_with_their_sides(site: People, page: Any) -> None:
    ids = site.furnish(40)
    ann = site.add("ann@example.org", name="Ann")
    log_in(page, site, ann)
    at_the_desk(page)
    keys = [*"12345678901234567", "9", "0", "="]
    judged = [vote(page, key) for key in keys]
    all_sent(page)

    votes = site.votes(ann)
    texts = site.store.comparisons.texts(ids)
    assert len(votes) == 20
    for key, (prompt, left, _), stored in zip(keys, judged, votes, strict=True):
        assert prompt == texts[stored.comparison_id].prompt
        side_of_left = "b" if stored.is_swapped else "a"
        assert ("Why the sky is blue" in left) == (side_of_left == "a"), (
            "what stood left is what the card says stood left"
        )
        if key in SCALE:
            side, strength = SCALE[key]
            expected = side_of_left if side == "left" else {"a": "b", "b": "a"}[side_of_left]
            assert (stored.choice.value, stored.strength) == (expected, strength)
        else:
            assert (stored.choice.value, stored.strength) == (
                "both_bad" if key == "0" else "tie",
                None,
            )
        assert stored.origin == "page"
        assert stored.duration_s is not None
        assert 0 < stored.duration_s < 60
    assert {stored.is_swapped for stored in votes} == {True, False}, "the server deals both sides"
    assert len({stored.comparison_id for stored in votes}) == 20
    assert page.inner_text("#today") == "20"


def test_two_offered_cards_are_not_shown_as_about_ten(site: People, page: Any) -> None:
    site.furnish(2)
    log_in(page, site, site.add("ann@example.org"))
    at_the_desk(page)
    until(lambda: page.inner_text("#remaining") == "≤ 10", "the number of cards left")


@pytest.mark.parametrize("prefetch", [1, 5])  # the project may ask for fewer than three
def test_three_leased_comparisons_lie_ready_between_any_two_votes(
    site: People, context: Any, page: Any, prefetch: int
) -> None:
    site.furnish(40)
    site.rules(prefetch=prefetch)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    ahead = []
    for _ in range(12):
        page.wait_for_timeout(500)
        # beside the one that is shown
        ahead.append(site.store.assignments.remaining_work().n_leased - 1)
        vote(page, "1")
    assert min(ahead) >= 3, ahead
    all_sent(page)
    page.wait_for_timeout(500)
    context.set_offline(True)  # they lie in the page, not on the server alone
    judged = [vote(page, key) for key in "123"]
    at_the_desk(page)
    assert len({*judged, read_card(page)}) == 4
    context.set_offline(False)
    all_sent(page)
    assert len(site.votes(ann)) == 15


def test_a_vote_cast_while_the_figures_are_read_is_counted_once(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    n_read = 0

    def late(route: Any) -> None:
        nonlocal n_read
        n_read += 1
        if n_read == 1:
            at_the_desk(page)
            vote(page, "1")  # the server counts it before it answers
            until(lambda: voted(page, site, ann, 1), "the vote")
        route.fulfill(response=route.fetch())

    page.route("**/api/v1/me/statistics", late)
    page.reload()
    at_the_desk(page)
    until(
        lambda: page.locator("#today").inner_text() == "1" and n_read == 2,
        "the second look at the figures",
    )
    page.wait_for_timeout(300)
    assert page.inner_text("#today") == "1"


def test_a_vote_whose_answer_is_on_its_way_is_counted_once(site: People, page: Any) -> None:
    """The page looks at the figures at every twentieth vote, which the server may have counted
    before its answer is here.
    """
    site.furnish(30)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    n_cast, held = 0, []

    def on_vote(route: Any) -> None:
        nonlocal n_cast
        n_cast += 1
        answer = route.fetch()  # the server has it
        if n_cast == 20:
            held.append((route, answer))
        else:
            route.fulfill(response=answer)

    def on_figures(route: Any) -> None:
        while not held:
            page.wait_for_timeout(20)
        route.fulfill(response=route.fetch())
        page.wait_for_timeout(300)
        for late, answer in held:
            late.fulfill(response=answer)
        page.unroute_all(behavior="ignoreErrors")

    page.route("**/api/v1/votes", on_vote)
    page.route("**/api/v1/me/statistics", on_figures)
    for _ in range(20):
        at_the_desk(page)
        vote(page, "1")
    all_sent(page)
    page.wait_for_timeout(2500)  # until it has looked again
    assert page.inner_text("#today") == "20" == str(len(site.votes(ann)))


def test_the_median_is_of_the_seconds_that_the_cards_were_seen(site: People, page: Any) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    assert page.inner_text("#median") == "–", "nobody knows of a median before the third vote"

    def read_median() -> float:
        seconds, unit = page.inner_text("#median").split()
        assert unit == "s"
        return float(seconds)

    for waited in (2500, 100, 1300, 100):
        page.wait_for_timeout(waited)
        vote(page, "1")
        all_sent(page)
        taken = [v.duration_s for v in site.votes(ann)]
        if len(taken) > 2:
            assert read_median() == pytest.approx(median(taken), abs=0.051), (
                taken
            )  # shown by tenths
    page.reload()
    at_the_desk(page)
    until(lambda: page.inner_text("#median") != "–", "what the server counted")
    assert read_median() == pytest.approx(median(taken), abs=0.051)


def test_undo_is_a_vote_more_and_the_next_key_replaces_it(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    first = vote(page, "1")
    second = vote(page, "2")
    press(page, "u")
    assert read_card(page) == second
    press(page, "Backspace")
    assert read_card(page) == first, "the one before it comes back as well"
    assert vote(page, "9") == first
    assert vote(page, "5") == second
    all_sent(page)
    until(lambda: voted(page, site, ann, 6), "six rows")

    cast_1, cast_2, undone_2, undone_1, again_1, again_2 = site.votes(ann)
    assert [v.details.flags if v.details else () for v in (undone_2, undone_1)] == [
        ("undone",),
        ("undone",),
    ]
    assert (undone_2.supersedes, undone_1.supersedes) == (cast_2.vote_id, cast_1.vote_id)
    assert (again_1.supersedes, again_2.supersedes) == (undone_1.vote_id, undone_2.vote_id)
    assert again_1.strength == 4
    assert again_1.choice != cast_1.choice
    day = cast_1.day.isoformat()
    counted = counting(site.store.votes.log([day]))
    assert sorted(counted["vote_id"]) == sorted([again_1.vote_id, again_2.vote_id])


def test_a_vote_taken_back_and_cast_anew_in_another_tab_is_one_pass(
    site: People, context: Any, page: Any
) -> None:
    """What the first tab knew of the undo is closed with it."""
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    judged = vote(page, "1")
    press(page, "u")
    until(lambda: read_card(page) == judged, "the card again")
    all_sent(page)
    until(lambda: voted(page, site, ann, 2), "the undo")
    page.close()
    other = context.new_page()
    other.goto(site.url + "/annotate")
    at_the_desk(other)
    assert read_card(other) == judged, "it comes first"
    vote(other, "9")
    all_sent(other)
    first, undone, again = site.votes(ann)
    assert (undone.supersedes, again.supersedes) == (first.vote_id, undone.vote_id)
    judged = standing(site.store.votes.log())
    assert judged.loc[judged["choice"] != "skip", "pass_no"].tolist() == [1]


def test_a_skip_leaves_the_comparison_to_others(site: People, page: Any) -> None:
    site.furnish(3)
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "s")
    all_sent(page)
    (skipped,) = site.votes(ann)
    assert skipped.choice.value == "skip"
    page.goto("about:blank")  # gives the rest back
    rules = site.store.rules.latest()[1]
    until(
        lambda: (
            skipped.comparison_id
            in {c.comparison_id for c in site.store.assignments.deal(bo.user_id, 5, rules)}
        ),
        "the skipped one",
    )


def test_what_is_said_beside_the_choice_is_stored(site: People, page: Any) -> None:
    site.furnish(3)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    press(page, "r")
    page.keyboard.type("B explains; 1 is wrong <b>")
    press(page, "Enter", "c", "8", "d", "b", "=", "a", "Enter", "f", "i")
    assert len(site.votes(ann)) == 0, "digits in the reason and in the modes are no votes"
    vote(page, "8")
    all_sent(page)
    (stored,) = site.votes(ann)
    left, right = ("b", "a") if stored.is_swapped else ("a", "b")
    assert (stored.choice.value, stored.strength) == (right, 3)
    assert stored.reason == "B explains; 1 is wrong <b>"
    assert stored.stated_confidence == 0.8
    assert stored.details is not None
    assert stored.details.dimensions == {"helpful": right, "correct": "tie", "harmless": left}
    assert set(stored.details.flags) == {"pii", "identity"}


def test_a_project_that_asks_for_reasons_gets_them(site: People, page: Any) -> None:
    site.furnish(3)
    site.rules(requires_reason=True)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    before = read_card(page)
    press(page, "7")
    assert page.evaluate("document.activeElement.id") == "reason"
    assert read_card(page) == before
    page.keyboard.type("shorter")
    press(page, "Enter")
    until(lambda: read_card(page) != before, "the next comparison")
    vote(page, "s")
    all_sent(page)
    assert [(v.strength, v.reason) for v in site.votes(ann)] == [(2, "shorter"), (None, None)]


def test_careful_mode_chooses_first_and_is_remembered(site: People, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    press(page, "v", "1", "9")
    assert page.get_attribute('[data-choice="b"][data-strength="4"]', "aria-pressed") == "true"
    assert page.get_attribute('[data-choice="a"][data-strength="4"]', "aria-pressed") == "false"
    vote(page, "Enter")
    all_sent(page)
    page.reload()
    at_the_desk(page)
    before = read_card(page)
    press(page, "5")
    assert read_card(page) == before
    assert [v.strength for v in site.votes(ann)] == [4]


def test_highlights_are_spans_of_the_source_in_both_views(site: People, page: Any) -> None:
    text = "# Sky 🌌\n\nBlue is **scattered most** 🌊, red is not.\n\n- a *short* wave"
    site.publish([("Why?", text, text + "\n\nAnd more.")])
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    select(page, "#left", "scattered most")
    press(page, "+")
    select(page, "#right", ", red is not")
    press(page, "-")
    assert page.inner_text("#left mark.plus") == "scattered most"
    press(page, "m")  # as it was written
    assert page.inner_text("#left mark.plus") == "scattered most"
    assert "**" in page.inner_text("#left")
    select(page, "#left", "- a *short* wave")
    press(page, "+")
    press(page, "m")
    assert [mark.text_content() for mark in page.query_selector_all("#left mark")] == [
        "scattered most",
        "a ",
        "short",
        " wave",
    ]
    page.reload()
    at_the_desk(page)
    assert page.inner_text("#right mark.minus") == ", red is not", "a reload keeps the draft"
    page.keyboard.press("5")
    all_sent(page)
    until(lambda: voted(page, site, ann, 1), "the vote")
    (stored,) = site.votes(ann)
    texts = site.store.comparisons.texts([stored.comparison_id])[stored.comparison_id]
    raw = {"a": texts.completion_a, "b": texts.completion_b}
    assert stored.details is not None
    said = sorted((raw[h.side][h.start : h.end], h.sign) for h in stored.details.highlights)
    assert said == [(", red is not", "-"), ("- a *short* wave", "+"), ("scattered most", "+")]


def test_highlights_can_be_made_by_keys_alone(site: People, page: Any) -> None:
    site.publish([("Why?", "one two three four", "five six seven")])
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    press(page, "h", "ArrowRight", "Shift+ArrowRight", "+", "Tab", "ArrowRight", "-", "Escape", "5")
    until(lambda: voted(page, site, ann, 1), "the vote")
    (stored,) = site.votes(ann)
    texts = site.store.comparisons.texts([stored.comparison_id])[stored.comparison_id]
    raw = {"a": texts.completion_a, "b": texts.completion_b}
    assert stored.details is not None
    left = raw["b" if stored.is_swapped else "a"].split()
    right = raw["a" if stored.is_swapped else "b"].split()
    assert [(raw[h.side][h.start : h.end], h.sign) for h in stored.details.highlights] == [
        (" ".join(left[1:3]), "+"),
        (right[1], "-"),
    ]


def test_keys_right_after_a_paint_cast_no_vote(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    first = read_card(page)
    strike(page, "1", "1", "9", "s", "=", "0", "Enter")
    at_the_desk(page)
    second = read_card(page)
    assert second != first
    assert page.inner_text("#today") == "1"
    strike(page, "1", "1", "u", "1")  # taking back needs no wait
    at_the_desk(page)
    assert read_card(page) == second
    assert page.inner_text("#today") == "1"
    vote(page, "2")
    all_sent(page)
    until(lambda: voted(page, site, ann, 4), "two votes, and one that was taken back")
    assert [v.strength for v in site.votes(ann)] == [4, 4, None, 3]


def strike(page: Any, *keys: str) -> None:
    """Press keys within one moment, faster than a test can from outside the page."""
    page.evaluate(
        "keys => keys.forEach(key => document.body.dispatchEvent(new KeyboardEvent('keydown', { "
        "key, bubbles: true, cancelable: true })))",
        list(keys),
    )


def test_second_click_right_after_a_paint_casts_no_vote(site: People, page: Any) -> None:
    site.furnish(3)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.evaluate("[1, 2, 3].forEach(() => document.querySelector('[data-choice=tie]').click())")
    at_the_desk(page)
    all_sent(page)
    until(lambda: voted(page, site, ann, 1), "one vote")
    assert page.inner_text("#today") == "1"


def test_a_key_held_down_is_one_vote(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    for _ in range(4):
        page.keyboard.down("1")  # the browser reports a repeat for every one but the first
    page.keyboard.up("1")
    all_sent(page)
    until(lambda: voted(page, site, ann, 1), "one vote")
    assert page.inner_text("#today") == "1"


def test_the_pause_covers_the_texts_and_stops_the_clock(site: People, page: Any) -> None:
    site.furnish(3)
    ann = site.add("ann@example.org")
    began = time.monotonic()
    log_in(page, site, ann)
    at_the_desk(page)
    press(page, "p")
    paused = time.monotonic()
    assert not page.is_visible("#left")
    press(page, "1", "9", "u")
    page.wait_for_timeout(1500)
    paused_s = time.monotonic() - paused
    press(page, "p")
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    (stored,) = site.votes(ann)
    assert stored.duration_s is not None
    assert stored.duration_s < time.monotonic() - began - paused_s


def test_guidelines_and_keys_are_one_key_away(site: People, page: Any) -> None:
    site.furnish(2)
    site.store.guidelines.add("# Be **kind**\n\nAnd correct.", after=0, actor="test")
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    press(page, "g")
    page.wait_for_selector("#guidelines-text h3")
    assert page.inner_text("#guidelines-text strong") == "kind"
    press(page, "1", "Escape", "?")
    assert page.is_visible("#keys")
    press(page, "2", "Escape")
    assert site.votes(ann) == [], "keys pressed over an open dialog are no votes"


def test_a_vote_that_waited_is_kept_under_the_guidelines_that_were_shown(
    site: People, page: Any, context: Any
) -> None:
    site.furnish(6)
    site.store.guidelines.add("# One", after=0, actor="test")
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    until(lambda: page.inner_text("#guideline-version") == "v1", "the first guidelines")
    context.set_offline(True)
    vote(page, "1")
    press(page, "u", "2")
    site.store.guidelines.add("# Two", after=1, actor="test")
    context.set_offline(False)
    all_sent(page)
    assert [stored.guideline_version for stored in site.votes(ann)] == [1, 1, 1]
    page.reload()
    at_the_desk(page)
    until(lambda: page.inner_text("#guideline-version") == "v2", "the second guidelines")
    vote(page, "1")
    all_sent(page)
    assert site.votes(ann)[-1].guideline_version == 2


def test_every_reason_for_an_empty_page_is_said(site: People, page: Any) -> None:
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    page.get_by_text("Nothing to judge yet").wait_for()
    site.furnish(2)
    site.rules(max_votes_per_day=1)
    page.reload()
    at_the_desk(page)
    vote(page, "1")
    page.get_by_text("Daily limit reached").wait_for()
    site.rules(max_votes_per_day=None)
    page.reload()
    at_the_desk(page)
    vote(page, "1")
    page.get_by_text("All done").wait_for()
    all_sent(page)
    log_in(page, site, site.add("bo@example.org"))
    page.get_by_text("Everything offered is judged by others").wait_for()
    assert len(site.votes(ann)) == 2, "a vote for each card that was dealt, none for an empty page"


def test_two_tabs_do_not_judge_one_comparison_twice(site: People, context: Any) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    one, two = context.new_page(), context.new_page()
    log_in(one, site, ann)
    at_the_desk(one)
    two.goto(site.url + "/annotate")
    at_the_desk(two)
    assert read_card(one) != read_card(two), "the second tab shows another one"
    for _ in range(3):
        vote(one, "1")
        vote(two, "9")
    all_sent(one)
    all_sent(two)
    until(lambda: voted(one, site, ann, 6), "six votes")
    assert len({v.comparison_id for v in site.votes(ann)}) == 6


def test_nothing_on_the_way_names_a_model_or_tells_why_a_card_was_dealt(
    site: People, page: Any
) -> None:
    site.furnish(5)
    ann = site.add("ann@example.org", Role.ANNOTATOR)
    log_in(page, site, ann)
    bodies: list[str] = []

    def overhear(route: Any) -> None:
        answer = route.fetch()
        bodies.append(answer.text())
        route.fulfill(response=answer)

    page.route("**/annotate?again", overhear)
    page.route("**/api/v1/**", overhear)
    page.goto(site.url + "/annotate?again")
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    page.unroute_all(behavior="wait")
    for path in ("/me", "/guidelines", "/rules"):
        page.goto(site.url + path)
        bodies.append(page.content())
    seen = "\n".join(bodies)
    assert "the air works like a mirror" in seen
    for word in (
        *MODELS,
        "acme-secret",
        "globex-hidden",
        '"kind":"normal"',
        "is_swapped",
        "pass_no",
        '"comparison_id":"c',
    ):
        assert word not in seen, word


def test_work_is_given_back_when_the_page_is_left(site: People, page: Any) -> None:
    site.furnish(5)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    until(lambda: site.store.assignments.remaining_work().n_leased == 5, "all cards leased ahead")
    # a card whose lease is still being answered is given back by its end alone
    page.wait_for_load_state("networkidle")
    page.goto(site.url + "/me")
    until(lambda: site.store.assignments.remaining_work().n_leased == 0, "cards given back")
    assert site.votes(ann) == [], "and nothing was said of them"


def test_a_vote_on_a_lease_that_ended_is_kept_as_one_more(site: People, page: Any) -> None:
    site.furnish(1)
    site.rules(lease_minutes=0.02)  # 1.2 seconds
    # users who judge blind are not told
    ann, bo = site.add("ann@example.org", Role.ADMIN), site.add("bo@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    rules = site.store.rules.latest()[1]
    dealt: list[Any] = []
    until(
        lambda: dealt.extend(site.store.assignments.deal(bo.user_id, 1, rules)) or bool(dealt),
        "the card on another table",
    )
    page.keyboard.press("1")
    page.get_by_text("counts as an additional judgement").wait_for()
    assert len(site.votes(ann)) == 1


def test_the_card_of_a_vote_that_is_discarded_may_be_judged_again(
    site: People, context: Any, page: Any
) -> None:
    """It stayed among the judged ones, and as the server deals it first, no other came any more."""
    site.furnish(2)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    refuse(context, lambda sent: True)
    judged = {vote(page, key) for key in "12"}
    page.get_by_role("button", name="Show votes").wait_for()
    rows = look(page)
    until(lambda: rows.get_by_role("button").count() == 2, "both refused")
    # Over the first route, not in its place: a vote sent again in between would be recorded.
    context.route("**/api/v1/votes", lambda route: route.abort())
    discard(rows, 0)
    discard(rows, 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#today") == "0"
    at_the_desk(page)
    context.unroute("**/api/v1/votes")
    assert {vote(page, key) for key in "34"} == judged
    all_sent(page)
    assert sorted(v.strength or 0 for v in site.votes(ann)) == [1, 2]
