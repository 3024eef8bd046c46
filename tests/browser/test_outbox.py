"""A dead network, a closed tab, a refused vote: nothing is lost, nothing is doubled."""

from typing import Any

import pytest

from tests.browser.page_actions import (
    all_sent,
    log_in,
    press,
    read_card,
    until,
    vote,
    wait_for_card,
)
from tests.browser.people import People


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def unsent(page: Any) -> int:
    return int(page.inner_text("#outbox").split()[0]) if page.is_visible("#outbox") else 0


def test_refused_vote_returns_on_top_with_the_reason(site: People, page: Any) -> None:
    site.furnish(5)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    card = read_card(page)
    site.rules(requires_reason=True)  # the page was told otherwise
    press(page, "r")
    press(page, "Escape")
    page.keyboard.press("1")
    until(lambda: page.is_visible("#notice"), "the refusal")
    assert "reason" in page.inner_text("#notice")
    assert read_card(page) == card
    assert page.inner_text("#today") == "0"
    press(page, "r")
    page.keyboard.type("clearer")
    press(page, "Enter")
    vote(page, "2")
    all_sent(page)
    assert [(v.strength, v.reason) for v in site.votes(ann)] == [(3, "clearer")]
