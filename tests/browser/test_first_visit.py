"""The first visit in Chromium: the guidelines, once."""

from typing import Any

from tests.browser.page_actions import all_sent, log_in, press, until, wait_for_card
from tests.browser.people import People


def test_a_first_visit_shows_the_guidelines_once(site: People, context: Any) -> None:
    site.furnish(3)
    site.rules(gold_share=0)
    site.store.guidelines.add("# Be **kind**", after=0, actor="test")
    ann = site.add("ann@example.org")
    page = context.new_page()
    log_in(page, site, ann)
    page.wait_for_selector("#guidelines[open]")
    until(lambda: "Be kind" in page.inner_text("#guidelines-text"), "the guidelines")
    assert "The button Guidelines opens" in page.inner_text("#guidelines-once"), "also by touch"
    assert site.store.cards.remaining_work().n_leased == 0, "no clock runs meanwhile"
    page.keyboard.press("Escape")
    wait_for_card(page)
    page.reload()
    wait_for_card(page)
    assert page.locator("#guidelines[open]").count() == 0
    press(page, "1")
    all_sent(page)
    assert len(site.votes(ann)) == 1
