"""The first visit in Chromium: guidelines once, then a practice round that is not counted."""

from typing import Any

from tests.browser.hands import all_sent, at_the_desk, log_in, press, until
from tests.browser.people import People
from tests.browser.test_access import faults


def know(site: People, n: int) -> None:
    """Comparisons with known answers, that nobody is asked about."""
    site.publish([(f"Known {i}", "right", "wrong") for i in range(n)], offered=False, prefix="k")
    with site.store.database.write_transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE comparisons SET gold = 'a' WHERE comparison_id LIKE 'k%'"
        )


def test_a_first_visit_shows_the_guidelines_and_a_round_that_is_not_counted(
    site: People, context: Any
) -> None:
    know(site, 8)
    site.furnish(3)
    site.rules(gold_share=0, requires_reason=True)
    site.store.guidelines.add("# Be **kind**", after=0, actor="test")
    ann = site.add("ann@example.org")
    page = context.new_page()
    log_in(page, site, ann)
    page.wait_for_selector("#guidelines[open]")
    until(lambda: "Be kind" in page.inner_text("#guidelines-text"), "the guidelines")
    assert "The button Guidelines opens" in page.inner_text("#guidelines-once"), "also by touch"
    assert site.store.cards.remaining_work().n_leased == 0, "no clock runs meanwhile"
    page.keyboard.press("Escape")
    at_the_desk(page)
    assert "Practice 1 of 2" in page.inner_text("#practice")
    right = "1" if page.inner_text("#left") == "right" else "9"
    press(page, right)
    until(lambda: "Right: " in page.inner_text("#practice"), "the known answer")
    assert faults(page) == []
    press(page, right)
    until(lambda: "Practice 2 of 2" in page.inner_text("#practice"), "the next card")
    page.reload()  # goes on where it was left
    at_the_desk(page)
    page.evaluate("document.getElementById('notice').hidden = false")  # of an unread completion
    assert "Practice 1 of 1" in page.inner_text("#practice")
    press(page, "5")
    until(lambda: "Not the known answer" in page.inner_text("#practice"), "the known answer")
    assert page.is_hidden("#notice"), "an accepted answer closes the notice"
    at_the_desk(page)
    page.get_by_role("button", name="Next").click()
    until(lambda: "Explain to a curious" in page.inner_text("#prompt"), "a card that counts")
    assert page.is_hidden("#practice")
    assert page.is_disabled("#undo")
    assert page.inner_text("#today") == "0"
    assert site.votes(ann) == []
    page.reload()
    at_the_desk(page)
    assert page.locator("#guidelines[open]").count() == 0
    press(page, "r")
    page.keyboard.type("because")
    page.keyboard.press("Escape")
    press(page, "1")
    all_sent(page)
    assert len(site.votes(ann)) == 1
