"""What helps to read a card: turns of a dialogue, differences of nearly equal completions, tabs."""

import json
from typing import Any

import pytest

from tests.browser.page_actions import all_sent, log_in, press, until, vote, wait_for_card
from tests.browser.people import People

DIALOGUE = json.dumps(
    [
        {"role": "user", "content": "Name a **colour**."},
        {"role": "assistant", "content": "Blue, of the sky. " + "It is scattered most. " * 60},
        {"role": "user", "content": "Another one?"},
    ]
)
LONG = "So it is with all the colours of the rainbow. " * 40
NEAR = (f"Red is a warm colour. {LONG}", f"Red is a cold colour, they say. {LONG}")
FAR = ("Sunlight is a mix of all colours", "One two three four five six seven")

DIFFER = """async ([a, b]) => {
    const { findDifferences } = await import("/static/annotate/differences.js");
    const found = findDifferences(a, b);
    const cut = (text, spans) => spans.map(({ start, end }) => text.slice(start, end));
    return found && [cut(a, found.a), cut(b, found.b)];
}"""


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def test_differences_mark_the_fewest_words(site: People, page: Any) -> None:
    page.goto(site.url + "/login")
    for a, b, words in (
        ("a b c d e", "a b x d e f", [["c"], ["x", "f"]]),
        ("It costs $5, now.", "It costs $6 now.", [["5,"], ["6"]]),
        ("天気が良い", "天気は良い", [["が"], ["は"]]),
        (*FAR, None),
    ):
        assert page.evaluate(DIFFER, [a, b]) == words, a


@pytest.mark.parametrize(
    ("a", "b", "signs"),
    [
        ("cat", "cat \t", [[], ["·\u2009→"]]),
        ("the cat", "the\u00a0cat", [["·"], ["NBSP"]]),
        ("the cat", "the  cat", [["·"], ["·\u2009·"]]),
        ("cat", "c\u200bat", [[""], ["U+200B"]]),
        ("cat.", "cat.\ufeff", [[], ["U+FEFF"]]),
        ("a\nb", "a\r\nb", [["↵"], ["CR\u2009↵"]]),
        ("- a\n- b", "- a\n\n- b", [["↵"], ["↵\u2009↵"]]),
        ("\tx", "    x", [["→"], ["·\u2009·\u2009·\u2009·"]]),
        ("caf\u00e9", "cafe\u0301", [["U+00E9"], ["U+0301"]]),
        ("isAdmin)", "isAdmin\u202e)", [[""], ["U+202E"]]),
    ],
)
def test_differences_that_look_the_same_are_named(
    site: People, page: Any, a: str, b: str, signs: list[list[str]]
) -> None:
    page.goto(site.url + "/login")
    differences = page.evaluate(
        """async ([a, b]) => {
            const { findDifferences } = await import("/static/annotate/differences.js");
            const { isUnseen, ...of } = findDifferences(a, b);
            return [isUnseen, [of.a, of.b].map((spans) => spans.map(({ unseen }) => unseen))];
        }""",
        [a, b],
    )
    assert differences == [True, signs]


def test_a_difference_of_blanks_shows_both_texts_as_written(site: People, page: Any) -> None:
    site.publish([("One.", "A *cat*  \nsat.", "A *cat*\nsat.\u200b")])
    log_in(page, site, site.add("ann@example.org"))
    wait_for_card(page)
    assert page.locator("#sides em").count() == 2
    press(page, "w")
    marks = page.locator("#sides mark[data-unseen]")
    until(lambda: marks.count() > 0, "marks")
    signs = marks.evaluate_all("marks => marks.map(({ dataset }) => dataset.unseen)")
    assert sorted(signs) == ["U+200B", "·\u2009·\u2009↵", "↵"]
    assert "A *cat*  \nsat." in {page.text_content("#left"), page.text_content("#right")}
    label = marks.first.evaluate("mark => getComputedStyle(mark, '::before').content")
    assert label == f'"{signs[0]}"'
    press(page, "w")
    assert page.locator("#sides em").count() == 2


def test_dialogue_is_shown_as_turns_at_its_end(site: People, page: Any) -> None:
    site.publish([(DIALOGUE, *NEAR)])
    log_in(page, site, site.add("ann@example.org"))
    wait_for_card(page)
    assert page.locator("#prompt .speaker").all_inner_texts() == ["User", "Assistant", "User"]
    assert page.locator("#prompt strong").inner_text() == "colour"
    prompt, last = page.locator("#prompt"), page.locator("#prompt .turn:last-child")
    until(lambda: prompt.evaluate("box => box.scrollTop") > 0, "a scrolled prompt")
    box, turn = prompt.bounding_box(), last.bounding_box()
    assert box["y"] <= turn["y"] < turn["y"] + turn["height"] <= box["y"] + box["height"]
    press(page, "m")
    assert page.locator("#prompt .turn").count() == 3
    assert "Name a **colour**" in page.inner_text("#prompt")


def test_key_toggles_marked_differences_on_every_card(site: People, page: Any) -> None:
    site.publish([("One.", *NEAR), ("Two.", *NEAR)])
    site.publish([("Three.", *FAR)], prefix="z")
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    marks = page.locator("#left mark.differs, #right mark.differs")
    is_on, is_near_seen = False, list[bool]()
    for _ in range(3):  # in an order of this annotator's own
        is_near = "warm" in page.inner_text("#sides")
        is_near_seen.append(is_near)
        assert page.locator("#differences").is_enabled() == is_near
        assert (marks.count() > 0) == (is_near and is_on)
        if is_near and not is_on:
            text = page.inner_text("#left")
            press(page, "w")
            is_on = True
            marks.first.wait_for()
            assert sorted(marks.all_inner_texts()) == [", they say", "cold", "warm"]
            assert page.inner_text("#left") == text
        vote(page, "4")
    assert sorted(is_near_seen) == [False, True, True]
    all_sent(page)
    assert [vote.strength for vote in site.votes(ann)] == [1, 1, 1]
