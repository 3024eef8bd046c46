"""Somebody judges by keyboard alone, and what they said is what is stored."""

import time
from typing import Any

import pytest

from tests.browser.page_actions import (
    all_sent,
    log_in,
    press,
    read_card,
    select,
    until,
    vote,
    voted,
    wait_for_card,
)
from tests.browser.people import People


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def test_small_queue_is_shown_as_at_most_ten(site: People, page: Any) -> None:
    site.furnish(2)
    log_in(page, site, site.add("ann@example.org"))
    wait_for_card(page)
    until(lambda: page.inner_text("#remaining") == "≤ 10", "the number of cards left")


def test_careful_mode_selects_first_and_is_remembered(site: People, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    press(page, "v", "1", "9")
    assert page.get_attribute('[data-choice="b"][data-strength="4"]', "aria-pressed") == "true"
    assert page.get_attribute('[data-choice="a"][data-strength="4"]', "aria-pressed") == "false"
    vote(page, "Enter")
    all_sent(page)
    page.reload()
    wait_for_card(page)
    before = read_card(page)
    press(page, "5")
    assert read_card(page) == before
    assert [v.strength for v in site.votes(ann)] == [4]


def test_highlights_are_spans_of_the_source_in_both_views(site: People, page: Any) -> None:
    text = "# Sky 🌌\n\nBlue is **scattered most** 🌊, red is not.\n\n- a *short* wave"
    site.publish([("Why?", text, text + "\n\nAnd more.")])
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
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
    wait_for_card(page)
    assert page.inner_text("#right mark.minus") == ", red is not", "a reload keeps the draft"
    page.keyboard.press("5")
    all_sent(page)
    until(lambda: voted(page, site, ann, 1), "the vote")
    (stored,) = site.votes(ann)
    texts = site.store.comparisons.texts([stored.comparison_id])[stored.comparison_id]
    raw = {"a": texts.completion_a, "b": texts.completion_b}
    assert stored.details is not None
    highlights = sorted((raw[h.side][h.start : h.end], h.sign) for h in stored.details.highlights)
    assert highlights == [(", red is not", "-"), ("- a *short* wave", "+"), ("scattered most", "+")]


def test_highlights_can_be_made_by_keys_alone(site: People, page: Any) -> None:
    site.publish([("Why?", "one two three four", "five six seven")])
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
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


def test_keys_right_after_rendering_cast_no_vote(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    first = read_card(page)
    strike(page, "1", "1", "9", "s", "=", "0", "Enter")
    wait_for_card(page)
    second = read_card(page)
    assert second != first
    assert page.inner_text("#today") == "1"
    strike(page, "1", "1", "u", "1")  # taking back needs no wait
    wait_for_card(page)
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


# The keys of the digits, from 1 to 0, without Shift.
ROWS = {"French": "&é\"'(-è_çà", "Czech": "+ěščřžýáíé", "bépo": '"«»()@+-/*'}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_keys_go_by_place_on_other_keyboards(site: People, page: Any, row: str) -> None:
    site.furnish(10)
    site.rules(repeat_share=0)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    for digit, key in zip("1234567890", row, strict=True):
        wait_for_card(page)
        before = read_card(page)
        strike_at(page, key, f"Digit{digit}")
        until(lambda before=before: not page.is_visible("#desk") or read_card(page) != before, key)
    all_sent(page)
    sides = {True: {"a": "b", "b": "a"}, False: {}}  # by whether they were swapped
    assert [
        (sides[v.is_swapped].get(v.choice.value, v.choice.value), v.strength)
        for v in site.votes(ann)
    ] == [
        *(("a", strength) for strength in (4, 3, 2, 1)),
        ("tie", None),
        *(("b", strength) for strength in (1, 2, 3, 4)),
        ("both_bad", None),
    ]


def test_enter_of_an_input_method_casts_nothing(site: People, page: Any) -> None:
    site.furnish(2)
    site.rules(requires_reason=True)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    press(page, "1")
    page.keyboard.type("にほんご")
    # the second as Safari sends it, after the composition has ended
    strike_at(page, "Enter", "Enter", keyCode=229, isComposing=True)
    strike_at(page, "Enter", "Enter", keyCode=229)
    assert page.evaluate("document.activeElement.id") == "reason"
    assert page.inner_text("#today") == "0"
    press(page, "Enter")
    until(lambda: voted(page, site, ann, 1), "a vote")


def strike_at(page: Any, key: str, code: str, **more: object) -> None:
    """Press a key of another layout."""
    page.evaluate(
        "init => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { ...init, "
        "bubbles: true, cancelable: true }))",
        {"key": key, "code": code, **more},
    )


def test_a_formula_is_drawn_and_highlighted_as_a_whole(site: People, page: Any) -> None:
    text = r"So $x*y*z = \frac{1}{2}$ is **half**, and it costs $5."
    site.publish([(r"What is \(x\)?", text, "No idea at all.")])
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    page.locator("#sides .formula.drawn").wait_for()
    assert page.locator("#prompt .formula.drawn").count() == 1
    assert "costs $5." in page.inner_text("#sides")
    page.locator("#sides .katex").click()
    press(page, "+")
    page.locator("#sides mark.plus .formula.drawn").wait_for()
    vote(page, "5")
    all_sent(page)
    (stored,) = site.votes(ann)
    assert stored.details is not None
    (span,) = stored.details.highlights
    assert text[span.start : span.end] == r"$x*y*z = \frac{1}{2}$"


def test_held_key_is_one_vote(site: People, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    for _ in range(4):
        page.keyboard.down("1")  # the browser reports a repeat for every one but the first
    page.keyboard.up("1")
    all_sent(page)
    until(lambda: voted(page, site, ann, 1), "one vote")
    assert page.inner_text("#today") == "1"


def test_pause_hides_the_texts_and_stops_the_clock(site: People, page: Any) -> None:
    site.furnish(3)
    ann = site.add("ann@example.org")
    began = time.monotonic()
    log_in(page, site, ann)
    wait_for_card(page)
    press(page, "p")
    paused = time.monotonic()
    assert not page.is_visible("#left")
    press(page, "1", "9", "u")
    page.wait_for_timeout(1500)
    paused_s = time.monotonic() - paused
    press(page, "p")
    wait_for_card(page)
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
    wait_for_card(page)
    press(page, "g")
    page.wait_for_selector("#guidelines-text h3")
    assert page.inner_text("#guidelines-text strong") == "kind"
    press(page, "1", "Escape", "?")
    assert page.is_visible("#keys")
    press(page, "2", "Escape")
    assert site.votes(ann) == [], "keys pressed over an open dialog are no votes"


def test_one_completion_is_rated_by_key_and_undone(site: People, context: Any, page: Any) -> None:
    site.rules(rating_share=0.5, repeat_share=0, gold_share=0)
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    while page.is_visible("#right"):
        vote(page, "1")
    n_votes = int(page.inner_text("#today"))
    press(page, "9", "0", "=", "c", "h")  # mean nothing here
    page.click("#more > summary")
    page.keyboard.press("i")
    context.set_offline(True)
    card = vote(page, "4")
    assert "4 of 5, good" in page.inner_text("#undo-what")
    press(page, "u")
    until(lambda: read_card(page) == card, "the card again")
    assert page.is_hidden("#right")
    vote(page, "2")
    until(lambda: page.inner_text("#outbox") == "3 unsent", "what waits")
    context.set_offline(False)
    all_sent(page)
    undone, rating = site.store.feedback.page()[::-1]
    assert [(e.value, e.status, e.tags) for e in (undone, rating)] == [
        (4, "rejected", ("identity",)),
        (2, "pending", ("identity",)),
    ]
    assert len(site.votes(ann)) == n_votes == int(page.inner_text("#today"))
